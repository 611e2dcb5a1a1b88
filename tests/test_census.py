"""The census: nets of timm, transformers and by hand, imported and beside their modules."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch

from policysearch.values import InputError
from tests.census import CENSUS, timm_models
from tests.imported_steps import BATCH, assert_as_torch, shaken

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


def test_what_a_mixture_of_experts_lacks_is_said_at_once() -> None:
    make, inputs = CENSUS["mixture"]
    with pytest.raises(InputError) as caught:
        assert_as_torch(make(), inputs(np.random.default_rng(1), BATCH))
    for op in ("aten.histc", "transformers.grouped_mm_fallback"):
        assert f"{op}: no rule" in str(caught.value)
