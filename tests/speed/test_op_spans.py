"""Which ops the plan cuts in spans."""

from __future__ import annotations

import pytest

from policysearch.emulator.plan import runs_in_spans, spans
from policysearch.ops.elementwise import add
from tests.test_op_variants import VARIANTS, variant_graph


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.endswith("in spans")])
def test_the_large_ones_really_run_in_spans(variant: str) -> None:
    graph = variant_graph(*VARIANTS[variant], "float16")
    computed = [n for n in graph.nodes if n.op.kind != "source"]
    assert all(runs_in_spans(graph, n) and len(list(spans(n.shape))) > 1 for n in computed)


@pytest.mark.parametrize("variant", ["vectors", "a square table", "max of one size", "average"])
def test_ops_that_move_values_never_run_in_spans(variant: str) -> None:
    """Though their inputs may have the shape of the result."""
    graph = variant_graph(*VARIANTS[variant], "float16")
    assert not [n for n in graph.nodes if runs_in_spans(graph, n) and n.op is not add]
