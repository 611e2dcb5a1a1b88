"""Import rules: convolutions and pools."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policysearch.importers.tracer import Rule

RULES: Mapping[str, Rule] = MappingProxyType({})
