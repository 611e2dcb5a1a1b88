"""The decisions of a space as they act: what a searcher learns from, and policies as its rows.

A raw parameter such as the master-weight switch does nothing for a float32 layer and most of the
gap for an 8-bit one. Here each group decides for its format together with where its parameters are
stored, how they are scaled and summed; parameters that make the same policy make the same row.
"""

from __future__ import annotations

from itertools import product

from policysearch.formats import format_named
from policysearch.rewrite.format_rules import OFF
from policysearch.search.decisions import Decisions, Option
from policysearch.search.parallel_space import PREFIX, parallel_option
from policysearch.search.searcher import Row
from policysearch.search.space import Params, Space

LOW = "bfloat16"
"""What an operation or a rule without a format of its own is taken to round to."""

_LAYER = ("master_weights", "accumulator", "scaling")
_SCALE = ("loss_scale", "log2_scale", "growth_interval")


class Effective:
    """The decisions of `space`, and the row of any of its parameters."""

    def __init__(self, space: Space) -> None:
        self._choices = space.choices()
        section = space.section
        self._fixed: Params = {
            "master_weights": section.master_weights[0],
            "accumulator": section.accumulators[0],
            "scaling": (*section.scalings, "")[0],
            "loss_scale": section.loss_scales[0],
            "log2_scale": section.log2_scale[0],
            "growth_interval": section.growth_intervals[0],
        }
        self._groups = [f"format.{group.name}" for group in space.groups]
        self._others = [
            name
            for name in self._choices
            if name == "optimizer_state" or name.startswith(("op.", "rule.", PREFIX))
        ]
        self._formats = section.formats
        values = [self._choices.get(name, (self._fixed[name],)) for name in _LAYER]
        found = {
            (name, *each): _layer_option(name, *each)
            for name in section.formats
            for each in product(*values)
        }
        self._layer_options = list(dict.fromkeys(found.values()))
        self._layer_place = {key: self._layer_options.index(each) for key, each in found.items()}
        self._other_options = [
            list(dict.fromkeys(_other_option(name, value) for value in self._choices[name]))
            for name in self._others
        ]
        scales = product(*(self._choices.get(n, (self._fixed[n],)) for n in _SCALE))
        self._scales = list(dict.fromkeys(_scale(*each) for each in scales))

    @property
    def decisions(self) -> Decisions:
        """What is decided, as `row` numbers it."""
        groups = [tuple(self._layer_options)] * len(self._groups)
        others = [tuple(options) for options in self._other_options]
        modifiers = (len(self._scales),) if len(self._scales) > 1 else ()
        return Decisions((*groups, *others), modifiers)

    def row(self, params: Params) -> Row:
        """Return the row of the policy that `params` make."""
        given = self._fixed | params
        layer = [given[name] for name in _LAYER]
        formats = [given.get(name, self._formats[0]) for name in self._groups]
        groups = [self._layer_place[name, *layer] for name in formats]
        others = [
            options.index(_other_option(name, given[name]))
            for name, options in zip(self._others, self._other_options, strict=True)
        ]
        scale = self._scales.index(_scale(*(given[name] for name in _SCALE)))
        return (*groups, *others, *([scale] if len(self._scales) > 1 else []))


def _layer_option(name: str, master: bool, accumulator: str, scaling: str) -> Option:
    """Return what a layer of this format decides; how it scales matters below 16 bits alone."""
    if name == "float32":
        return Option(name)
    row = format_named(name)
    stored = "" if master else (name if row.bits >= 16 else "bfloat16")
    scaled = scaling if row.bits < 16 else ""
    said = "/".join(filter(None, (name, stored, accumulator, scaled)))
    return Option(said, row.epsilon, format_named(stored).epsilon if stored else 0.0)


def _other_option(name: str, value: str) -> Option:
    """Return what an op, a rule, the format of the optimizer's state or the spread decides."""
    if name.startswith(PREFIX):
        return parallel_option(name, value)
    said = f"{name}={value}"
    if value in ("fp32", "float32", OFF):
        return Option(said)
    if name == "optimizer_state":
        return Option(said, 0.0, format_named(value).epsilon)
    known = name.startswith("rule.") and value != "on"
    return Option(said, format_named(value if known else LOW).epsilon)


def _scale(kind: str, log2_scale: int, growth_interval: int) -> tuple[str, int, int]:
    """Return the loss scale without what its kind does not use."""
    if kind == "none":
        return kind, 0, 0
    return kind, log2_scale, growth_interval if kind == "dynamic" else 0
