"""The census: nets of timm, transformers and by hand, imported and beside their modules."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from tests.census import CENSUS, timm_models
from tests.imported_steps import (
    BATCH,
    assert_as_torch,
    assert_close,
    emulated,
    first_of,
    imported,
    labels_for,
    of_torch,
    shaken,
    tensors,
)

pytestmark = pytest.mark.zoo


@pytest.fixture(autouse=True)
def repeatable_torch() -> None:
    timm_models()  # transformers imports torchvision too
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", [name for name in CENSUS if name != "mixture"])
def test_a_net_of_the_census_computes_what_its_module_does(name: str) -> None:
    make, inputs = CENSUS[name]
    model = assert_as_torch(shaken(make()), inputs(np.random.default_rng(1), BATCH))
    assert len(model.layer_names) > 2


def test_a_mixture_of_experts_computes_what_its_module_does() -> None:
    """In float32 alone: torch has no grouped products in float64."""
    make, inputs = CENSUS["mixture"]
    module, given = shaken(make()), inputs(np.random.default_rng(1), BATCH)
    model = imported(module, given)
    with torch.no_grad():
        labels = labels_for(first_of(module(*tensors(given))), np.random.default_rng(0))
    ours, torchs = emulated(model, given, labels), of_torch(module, given, labels)
    assert_close(ours.logits, torchs.logits, 1e-5, "logits")
    assert ours.grads.keys() == torchs.grads.keys()
    assert any("experts" in name for name in torchs.grads)
    for name, grad in torchs.grads.items():
        assert_close(ours.grads[name], grad, 1e-4, name)
