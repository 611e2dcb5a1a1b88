"""Ops without an import rule, taken apart by torch's own decomposition, beside torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.importers.program import Ref
from policysearch.importers.rules import rule_of
from policysearch.train.step import trace_forward
from policysearch.values import InputError
from tests.imported_steps import BATCH, assert_as_torch, imported
from tests.pointwise_functions import Function
from tests.test_import_rules import ROWS, Of
from tests.test_pointwise_against_torch import ONE, ONE_IN, SHAPE, Parameter, ours

pytestmark = pytest.mark.torch

ONE_KERNEL: dict[str, Function] = {
    "logaddexp": lambda x: torch.logaddexp(x, -x),
    "xlogy": lambda x: torch.xlogy(x, x.abs()),
    "sinc": torch.sinc,
    "logit": lambda x: torch.logit(x.abs() / 8.0),
    "special_entr": lambda x: torch.special.entr(x.abs()),
    "frac": lambda x: torch.frac(4.0 * x),
}
SEVERAL: dict[str, Function] = {
    "cosine_similarity": lambda x: F.cosine_similarity(x, x * x + 0.1, dim=-1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x * x),
    "float_power": lambda x: torch.float_power(x, 2.0).float(),
    "special_log_softmax": lambda x: torch.special.log_softmax(x, 1),
    "grid_sampler": lambda x: F.grid_sample(
        x[:, None], x[:, :2].reshape(-1, 2, 3, 2), align_corners=False
    ),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(-1, 4, 2, 3), 2),
    "isclose": lambda x: torch.where(torch.isclose(x, x.relu()), x, x * x),
}


@pytest.mark.parametrize("name", [*ONE_KERNEL, *SEVERAL])
def test_an_op_without_a_rule_computes_what_torch_does(name: str) -> None:
    if rule_of(f"aten.{name}") is not None:
        pytest.skip("has a rule by now")
    torch.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((BATCH, 24)).astype(np.float32)
    model: Any = assert_as_torch(Of(ROWS, {**ONE_KERNEL, **SEVERAL}[name]), (x,))
    pieces = [call for call in model.program.calls if call.piece]
    assert {call.piece.op for call in pieces} == {f"aten.{name}"}
    ops = [node.op.name for node in trace_forward(model, 7).nodes]
    if name in ONE_KERNEL:
        assert len(pieces) > 1 and {call.piece.kernel for call in pieces} == {name}
        assert ops.count(name) == 1


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel_rounds_once(name: str) -> None:
    """As torch's float32 does; on a CPU it computes some of these in 16 bits."""
    torch.manual_seed(0)
    module = Parameter(SHAPE, ONE_KERNEL[name])
    model = imported(module, (ONE,))
    for dtype in ("float16", "bfloat16"):
        kind, seed = getattr(torch, dtype), np.zeros((1, *SHAPE), np.float32)
        x = module.weight.detach().to(kind).float()
        got = ours(model, module, dtype, seed)[0][0]
        expected = ONE_KERNEL[name](x).to(kind).float().numpy()
        assert np.ptp(expected) > 0.0 and np.mean(got != expected) <= 1.0 / ONE_IN


class Casting(nn.Module):
    """Has casts, so that it is read in bfloat16 as well, where torch decomposes otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        y = self.fc(x)
        return torch.sinc(y.float()).to(y.dtype) + torch.logaddexp(y, 0.5 - y)


def test_pieces_are_the_same_in_every_format() -> None:
    torch.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((BATCH, 6)).astype(np.float32)
    model: Any = assert_as_torch(Casting(), (x,))
    casts = [call.arguments[1] for call in model.program.calls if call.op == "aten.to"]
    assert casts == ["float32", Ref("linear")]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.hypot, r"the module itself: aten.hypot: no rule for this op"),
        (
            lambda x, y: x * torch.linalg.matrix_norm(y, "nuc")[:, None, None],
            r"the module itself: aten.linalg_matrix_norm\S*, in it aten.\w*svd\w*: no rule for",
        ),
    ],
)
def test_what_has_no_rule_in_the_end_is_named(function: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        imported(Of(ROWS, lambda x: function(x, x * x)), (np.zeros((2, 24), np.float32),))
