"""Every op of torch that goes in has a net of its own, which trains 50 steps as in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.fx import Interpreter

import policysearch
from policysearch.importers.rules import FAMILIES, RULES
from tests.imported_steps import first_of, tensors
from tests.nets_of_ops import BATCH, NET_OF, NETS, OTHER_NAMES, inputs_of, module_of
from tests.trained_ops import POLICIES, rows_of

pytestmark = pytest.mark.torch

OPS = sorted({name.removesuffix("_") for name in RULES})

WITHOUT: Mapping[str, str] = {
    **dict.fromkeys(FAMILIES["draws"], "verify draws nothing in torch: tests/routed_nets_of_torch"),
    **dict.fromkeys(
        ("all", "any", "count_nonzero"), "masks of a net in tests/test_trainings_of_shapes.py"
    ),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), "they compute nothing"),
}
"""Ops that have no net here, and why, or which test has one."""

UNREAD: Mapping[str, str] = {
    "copy": "its result is a view of what is read",
    "fill": "its result is a view of what is read",
    "max_pool2d_with_indices": "its net reads the indices; that of max_pool2d the values",
    "ctc_loss": "torch exports no module that can run: its lengths are values",
    "_pack_padded_sequence": "torch exports no module that can run: its lengths are values",
}
"""Ops whose own results have no gradient to look at, and why: that of the first layer is."""

INSIDE = "torch divides gradients by the size of a bag inside its kernel, and rounds once less"
SMALLER = "torch has no kernel of 16 bits on a CPU"

NOT_MET: Mapping[str, str] = {
    "embedding_bag of means": INSIDE,
    "embedding_bag of means, some left out": INSIDE,
    "prod": "under a dispatch mode, as here, torch multiplies running products; else it divides",
    "writing into views of views": "torch adds the gradient of a copy last, here as it is read",
    "bilinear": "torch rounds inside the gradients of its product of three",
    "einsum of early sums": "one of its sums goes wrong in float16; verify ends in bfloat16",
    "adaptive_avg_pool3d": "torch adds gradients of windows that overlap in 16 bits",
    **dict.fromkeys(
        ("cdist", "cdist of another order", "avg_pool3d", "local_response_norm"), SMALLER
    ),
}
"""Nets that do not train as in torch in 16 bits, and the cause."""


def test_every_op_has_a_net_of_its_own() -> None:
    without = {name.removesuffix("_") for name in WITHOUT}
    assert set(OPS) - without <= {*NET_OF, *OTHER_NAMES}
    assert not without & ({*NET_OF} | {*OTHER_NAMES}) and without <= set(OPS)
    assert set(OTHER_NAMES.values()) <= {*NET_OF} and set(NET_OF.values()) <= {*NETS}
    assert set(NOT_MET) <= {*NETS}


class Calls(Interpreter):
    """Runs an exported module, and keeps what calls of an op give."""

    def __init__(self, module: Any, op: str) -> None:
        super().__init__(module)
        self.op, self.seen = op, list[torch.Tensor]()

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        name = str(getattr(n.target, "_opname", "")).removesuffix("_")
        if name == self.op:
            each = result if isinstance(result, tuple | list) else (result,)
            self.seen += [x for x in each if isinstance(x, torch.Tensor)]
            for x in self.seen:
                if x.requires_grad:
                    x.retain_grad()
        return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", sorted((NET_OF.keys() & set(OPS)) - OTHER_NAMES.keys()))
def test_its_net_calls_it_and_a_gradient_goes_through(op: str) -> None:
    name = NET_OF[op]
    net, (arrays, _) = module_of(name).train(), inputs_of(name)
    inputs = tensors([array[:BATCH] for array in arrays])
    own = {"loss": "own"} if name.startswith("loss: ") else {}
    model: Any = policysearch.from_torch(net, inputs, **own)
    called = {c.op.removeprefix("aten.").removesuffix("_") for c in model.program.calls}
    assert called & {op, *(other for other, of in OTHER_NAMES.items() if of == op)}, called
    first_of(net(*inputs)).square().sum().backward()
    assert bool((next(net.parameters()).grad != 0).any())
    if op not in UNREAD:
        calls = Calls(torch.export.export(net, inputs, strict=False).module(), op)
        first_of(calls.run(*inputs)).square().sum().backward()
        floats = [x.grad for x in calls.seen if x.requires_grad]
        assert not floats or any(x is not None and bool((x != 0).any()) for x in floats)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format_name", POLICIES)
@pytest.mark.parametrize("net", NETS)
def test_its_net_trains_as_in_torch(net: str, format_name: str) -> None:
    """See `tests.trained_ops.Row`; `python -m tests.trained_ops` prints the table."""
    torch.set_num_threads(1)
    rows = [row for row in rows_of(net, format_name) if not row.holds]
    if rows and format_name != "float32" and net in NOT_MET:
        pytest.xfail(NOT_MET[net])
    assert not rows, "\n".join(map(str, rows))
