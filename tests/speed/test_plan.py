"""Planned buffers: those alive together lie apart."""

from __future__ import annotations

import pytest

from policysearch.emulator.plan import Plan
from tests.emulated_steps import NETS, graph_of


@pytest.mark.parametrize("net", NETS)
def test_buffers_alive_together_do_not_overlap(net: str) -> None:
    plan = Plan(graph_of(NETS[net], "float16", "adam"))
    for i, one in enumerate(plan.buffers):
        for other in plan.buffers[:i]:
            together = one.first <= other.last and other.first <= one.last
            apart = (
                one.offset + one.elements <= other.offset
                or other.offset + other.elements <= one.offset
            )
            assert apart or not together
