"""Every import rule, and the table of the ops that have one.

`python -m policysearch.importers.rules` prints the page docs/supported-ops.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from policysearch.importers.tracer import Rule

TITLES: Mapping[str, str] = MappingProxyType(
    {
        "elementwise": "arithmetic and functions",
        "activations": "activations",
        "comparison": "comparisons and logic",
        "attention": "softmax and attention",
        "products": "products",
        "complex_numbers": "complex numbers and Fourier transforms",
        "linear_algebra": "linear algebra",
        "reductions": "sums, means and extremes",
        "convolution": "convolutions",
        "windows": "borders, windows and sizes",
        "norms": "norms",
        "layers": "layers",
        "recurrent": "recurrent layers",
        "losses": "losses of numbers and of alignments",
        "class_losses": "losses of classes",
        "margin_losses": "losses of margins and cosines",
        "shapes": "shapes",
        "indexing": "indexing",
        "selections": "rows that a mask chooses",
        "places": "places where a mask is true",
        "routing": "ranks and routing",
        "draws": "draws",
    }
)
"""The files that hold rules, and what the page calls them; of two with a name the later counts."""

FAMILIES: Mapping[str, Mapping[str, Rule]] = MappingProxyType(
    {file: importlib.import_module(f"policysearch.importers.{file}").RULES for file in TITLES}
)
"""Rules by file."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {name: rule for rules in FAMILIES.values() for name, rule in rules.items()}
)
"""Rules by name, without "aten." and without the overload; an in-place op has its plain name."""

TITLE = """# Supported ops

This page is made from the code by `make docs`. Names are those of `torch.ops.aten`, in place or
not; an op that has no row is taken apart by torch's own decomposition of it, as far as that is made
of these (docs/own-net.md)."""


def rule_of(op: str) -> Rule | None:
    """Return the rule of an op named as in "aten.relu_", None where it has none."""
    name = op.rpartition(".")[2]
    return RULES.get(name) or RULES.get(name.removesuffix("_"))


def supported_ops_page() -> str:
    """Return the page as Markdown."""
    rows = (
        f"| {TITLES[file]} | {', '.join(f'`{name}`' for name in sorted(rules))} |"
        for file, rules in FAMILIES.items()
    )
    return "\n".join((TITLE, "", "| family | ops |", "|---|---|", *rows))


if __name__ == "__main__":
    print(supported_ops_page())
