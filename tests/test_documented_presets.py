"""The presets against the table of docs/presets.md, which was written from the frameworks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from policysearch.formats import FORMATS
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.preset_row import LISTED_OPS
from policysearch.policy.presets import PRESETS, preset

TEXT = (Path(__file__).parents[1] / "docs" / "presets.md").read_text(encoding="utf-8")
NAMES = re.compile(r"`([\w.]+)`")
FORMAT = re.compile("|".join(sorted(FORMATS, key=len, reverse=True)))
"""Longest first, for float8_e4m3fn holds no other name but bfloat16 holds float16."""


class Row(NamedTuple):
    """The cells behind the name, in the order of the table."""

    layers: str
    low: str
    fp32: str
    promote: str
    parameters: str
    loss_scale: str


def documented() -> dict[str, Row]:
    """Return the table by preset; "as" another takes the cells of that one where its are empty."""
    first = TEXT.index("| `float32`")
    table: dict[str, Row] = {}
    for line in TEXT[first : TEXT.index("\n\n", first)].splitlines():
        head, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        row, names = Row(*cells), NAMES.findall(head)
        each = (
            row.loss_scale.split("; ") if row.layers == "uniform" else [row.loss_scale] * len(names)
        )
        for name, scale in zip(names, each, strict=True):
            table[name] = row._replace(loss_scale=scale)
    for name, row in table.items():
        if row.layers.startswith("as "):
            other = NAMES.search(row.layers)
            base = table[other[1] if other else name.rpartition(".")[0]]
            kept = (own or theirs for own, theirs in zip(row[1:], base[1:], strict=True))
            table[name] = Row(base.layers, *kept)
        elif row.low.startswith("as "):
            like = table[NAMES.findall(row.low)[0]]
            table[name] = row._replace(low=like.low, fp32=like.fp32, promote=like.promote)
    return table


TABLE = documented()
SCALED = re.compile(r"(dynamic) from 2\^(\d+)|fixed (\d+)")


def policy_of(name: str) -> Policy:
    return preset(name, ("conv1", "fc1"))


def test_the_presets_are_those_that_are_documented() -> None:
    assert TABLE.keys() == PRESETS.keys()
    assert all(row.name == name for name, row in PRESETS.items())
    order = re.search(r"in this order: ([^\n]*\n[^\n]*)", TEXT)
    assert order is not None and len(set(NAMES.findall(order[1])) & PRESETS.keys()) == 4


@pytest.mark.parametrize("name", TABLE)
def test_the_loss_scale_is_as_documented(name: str) -> None:
    cell, scale = TABLE[name].loss_scale, policy_of(name).loss_scale
    found, after = SCALED.search(cell), re.search(r"after (\d+) clean steps", cell)
    interval = int(after[1]) if after else 2000
    if found is None:
        assert cell.startswith("none") and scale == LossScale()
        return
    kind, start = (found[1], 2.0 ** int(found[2])) if found[1] else ("fixed", float(found[3]))
    assert (scale.kind, scale.init_scale) == (kind, start)
    floor, cap = re.search(r"at least (\d+)", cell), re.search(r"cap 2\^(\d+)", cell)
    assert scale.min_scale == (float(floor[1]) if floor else None)
    assert scale.max_scale == (2.0 ** int(cap[1]) if cap else None)
    # "Every dynamic scale doubles after 2000 clean steps and halves on an overflow."
    assert (scale.growth_factor, scale.backoff_factor, scale.growth_interval) == (
        2.0,
        0.5,
        interval,
    )


@pytest.mark.parametrize("name", TABLE)
def test_the_scaling_recipe_is_as_documented(name: str) -> None:
    cell, scaling = TABLE[name].loss_scale, policy_of(name).scaling
    recipe = re.search(r"recipe `(\w+)`", cell)
    assert scaling.recipe == (recipe[1] if recipe else "none")
    assert scaling.power_of_two == ("power-of-two scales" in cell)
    if "history" in cell:
        assert (scaling.margin, scaling.history, scaling.amax) == (0, 1024, "max")


@pytest.mark.parametrize("name", TABLE)
def test_the_formats_of_the_layers_are_as_documented(name: str) -> None:
    cell, layer = TABLE[name].layers, policy_of(name).layer("fc1")
    given = FORMAT.findall(cell)
    if "operands and gradients" in cell:
        expected = [given[0], given[0], given[1]]
    elif "operands" in cell:
        expected = given
    else:
        expected = (given or [name]) * 3
    assert [layer.compute, layer.grad, layer.output] == expected
    assert layer.wgrad == layer.output == layer.dgrad


@pytest.mark.parametrize("name", TABLE)
def test_the_storage_of_parameters_is_as_documented(name: str) -> None:
    cell, policy = TABLE[name].parameters, policy_of(name)
    assert policy.master_weights == ("only" not in cell)
    first, *more = FORMAT.findall(cell)
    assert policy.layer("fc1").param == first
    assert policy.optimizer_state == ((more or [first])[0] if "optimizer" in cell else "float32")
    drawn = "by chance" in cell
    assert policy.rounding.update.mode == ("stochastic" if drawn else "nearest_even")
    eager = "in the eager order" in cell
    assert policy.optimizer_order == ("eager" if eager else "fused")


SAYS = {
    "convolutions": ("conv2d", "conv_transpose2d"),
    "norms": ("batch_norm", "layer_norm"),
    "losses": ("softmax_cross_entropy", "token_cross_entropy", "mean_squared_error"),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_op_lists_are_as_documented(name: str) -> None:
    """Named ops are in the list of their column, every other op in that of "all" or "the rest"."""
    policy, row = policy_of(name), TABLE[name]
    lists = {
        "low": policy.low_precision_ops,
        "fp32": policy.fp32_ops,
        "promote": policy.promote_ops,
    }
    rest = [column for column in lists if re.match("all|the rest", getattr(row, column))]
    assert len(rest) == 1
    expected = dict.fromkeys(LISTED_OPS, rest[0]) | dict.fromkeys(SAYS["losses"], "fp32")
    for column in lists:
        for word in re.findall(r"\w+", getattr(row, column).partition(";")[0]):
            named = SAYS.get(word, (word,) if word not in ("all", "the", "rest") else ())
            assert set(named) <= set(LISTED_OPS)
            expected |= dict.fromkeys(named, column)
    if "bias is added in float32" in row.promote:
        assert policy.bias == "fp32" and expected["bias"] == "promote"
    assert expected == {op: column for op in LISTED_OPS for column in lists if op in lists[column]}


def test_ops_that_rows_speak_of_are_defined() -> None:
    assert set(LISTED_OPS) <= set(FORWARD_OPS)
    assert len(set(LISTED_OPS)) == len(LISTED_OPS)
