"""The checks of exported files on a GPU, where there is none: on a CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.gpu_export.cases import CASES, TASKS
from benchmarks.gpu_export.scaler import scaler_checks

pytestmark = pytest.mark.torch


def test_the_loss_scale_does_what_grad_scaler_does() -> None:
    found = scaler_checks("cpu")
    assert len(found) == 8 and [name for name, holds in found.items() if not holds] == []


def test_cases_are_policies_of_their_nets() -> None:
    assert len(CASES) >= 15 and {case.net for case in CASES} == set(TASKS)
    layers = ("fc1", "relu1", "fc2", "relu2", "fc3")
    drawn = [case.made(layers) for case in CASES]
    kinds = {policy.loss_scale.kind for policy in drawn}
    formats = {form.compute for policy in drawn for _, form in policy.layers}
    assert kinds == {"none", "fixed", "dynamic"}
    assert formats == {"float32", "float16", "bfloat16"}
