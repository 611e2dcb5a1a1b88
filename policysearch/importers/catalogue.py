"""The torch ops that can be imported: every rule of this package, by the op's name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policysearch.importers import (
    attention,
    convolution,
    elementwise,
    layers,
    losses,
    recurrence,
    shapes,
)
from policysearch.importers.tracer import Rule

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        name: rule
        for family in (attention, convolution, elementwise, layers, losses, recurrence, shapes)
        for name, rule in family.RULES.items()
    }
)
"""Rules by name, without "aten." and without the overload; an in-place op has its plain name."""
