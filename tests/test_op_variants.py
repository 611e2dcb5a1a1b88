"""Attributes and shapes beside an op's example: every way gives the bits of the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.formats import FORMATS
from policysearch.graph import Attrs, Graph, Shape
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import LOSS_SCALE, data, parameter
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import fast_ways, quantise
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference

IMAGE = (3, 4, 7, 6)
VARIANTS: dict[str, tuple[str, tuple[Shape, ...], Attrs]] = {
    "conv in pairs": ("conv2d", (IMAGE, (8, 4, 3, 3)), {"stride": (2, 2), "padding": (1, 1)}),
    "conv unequal": ("conv2d", (IMAGE, (8, 4, 3, 2)), {"stride": (2, 1), "padding": (0, 1)}),
    "conv dilated": ("conv2d", (IMAGE, (8, 4, 3, 3)), {"dilation": 2, "padding": 2}),
    "conv in groups": ("conv2d", (IMAGE, (8, 2, 3, 3)), {"groups": 2}),
    "conv by channel": ("conv2d", (IMAGE, (4, 1, 3, 3)), {"groups": 4, "padding": 1}),
    "transposed in groups": ("conv_transpose2d", (IMAGE, (4, 3, 2, 2)), {"groups": 2, "stride": 2}),
    "max of one size": ("max_pool", (IMAGE,), {"window": 3, "stride": 1, "padding": 1}),
    "max in pairs": ("max_pool", (IMAGE,), {"window": (2, 2), "stride": (2, 2)}),
    "max unequal": ("max_pool", (IMAGE,), {"window": 2, "stride": (2, 1)}),
    "max rounded up": ("max_pool", (IMAGE,), {"window": 2, "stride": 2, "ceil_mode": True}),
    "average": ("average_pool", (IMAGE,), {"window": 3, "stride": 1, "padding": 1}),
    "stacks": ("matmul", ((2, 3, 4, 5), (2, 3, 5, 2)), {}),
    "one for all": ("add", ((300, 500), (1,)), {}),
    "a row": ("multiply", ((300, 500), (500,)), {}),
    "a column": ("multiply", ((300, 500), (300, 1)), {}),
    "a scalar": ("subtract", ((300, 500), ()), {}),
    "the last axis of an image": ("add", ((3, 6, 7, 6), (6,)), {}),
    "both": ("divide", ((4, 1, 6), (5, 1)), {}),
    "many channels": ("batch_norm", ((300, 500), *((500,),) * 4), {"training": True}),
    "channels of an image": ("batch_norm", ((9, 20, 16, 16), *((20,),) * 4), {}),
    "channels of a row": ("batch_norm", ((3, 4, 50), *((4,),) * 4), {"training": True}),
    "vectors": ("concatenate", ((3,), (4,), (3,)), {"axis": 0}),
    "a square table": ("embedding", ((5, 5), (5,)), {}),
    "a sum of all": ("sum", (IMAGE,), {}),
    "a mask over heads": ("masked_fill", ((2, 3, 4, 4), (4, 4)), {"value": -np.inf}),
    "a dropped matrix": ("dropout", ((300, 500), (300, 500)), {"p": 0.5}),
    **{
        f"{name} in spans": (name, ((300, 500),), attrs)
        for name, attrs in (
            *((name, {}) for name in ("exp", "sqrt", "rsqrt", "silu", "hardswish")),
            ("pow", {"exponent": 1.7}),
            ("leaky_relu", {"negative_slope": 0.1}),
            ("hardtanh", {"minimum": 0.0, "maximum": 6.0}),
        )
    },
}


def variant_graph(name: str, shapes: tuple[Shape, ...], attrs: Attrs, format: str) -> Graph:
    """Return the op and its gradients, their results in `format`."""
    op, b = OPS[name], Builder()
    fed = [
        b.emit(data, attrs={"shape": shape}, role="input", name=f"x{i}")
        for i, shape in enumerate(shapes)
    ]
    made = b.emit(op, *fed, attrs=attrs)
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name="seed")
    rules = zip(fed, op.gradients, strict=False)
    wanted = [i for i, rule in rules if rule is not None]
    grads = backward(b, made, seed, wanted, add)
    graph = b.graph({"y": made} | {f"g{i}": grads[i] for i in wanted})
    nodes = (n if n.op.kind == "source" else replace(n, format=format) for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize("fed", ["float32", "float16"])
@pytest.mark.parametrize("format", ["float32", "float16"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_way_gives_the_bits_of_the_reference(variant: str, format: str, fed: str) -> None:
    """What is `fed` on the grid of its format too: sums of such values leave it."""
    name, shapes, attrs = VARIANTS[variant]
    graph = variant_graph(name, shapes, attrs, format)
    nodes = (replace(n, format=fed) if n.op.kind == "source" else n for n in graph.nodes)
    graph = replace(graph, nodes=tuple(nodes))
    rng = np.random.default_rng(0)
    start = {
        n.name: quantise(rng.uniform(0.0, 4.0, n.shape).astype(np.float32), FORMATS[fed])
        for n in graph.nodes
        if n.op.kind == "source"
    }
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(graph, start, fast, steps=1)


def test_only_what_was_broadcast_has_its_gradient_summed() -> None:
    for shapes, sums in ((((4, 3), (4, 3)), 0), (((4, 3), (3,)), 1), (((4, 1), (3,)), 2)):
        graph = variant_graph("multiply", shapes, {}, "float32")
        assert [n.op.name for n in graph.nodes].count("sum_to") == sums


def _scaled(variant: str, recipe: str) -> Graph:
    """Return a product of the variants with its gradients, under a preset of narrow formats."""
    name, (image, weights), attrs = VARIANTS[variant]
    b = Builder()
    x = b.emit(data, attrs={"shape": image}, role="input", name="x")
    w = b.emit(parameter, attrs={"shape": weights}, role="input", name="conv.weight", layer="conv")
    with b.scope(layer="conv"):
        made = b.emit(OPS[name], x, w, attrs=attrs)
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name=LOSS_SCALE)
    grads = backward(b, made, seed, [x, w], add)
    graph = b.graph({"y": made, "gx": grads[x], "gw": grads[w]})
    return apply_policy(graph, preset(recipe, ("conv",)))


@pytest.mark.parametrize("recipe", ["te.current", "te.delayed"])
@pytest.mark.parametrize("variant", ["conv in groups", "conv unequal", "transposed in groups"])
def test_products_of_any_kind_are_scaled_by_tensor(variant: str, recipe: str) -> None:
    graph = _scaled(variant, recipe)
    assert [n.op.name for n in graph.nodes].count("descale") == 3
    rng = np.random.default_rng(0)
    start = {
        n.name: rng.standard_normal(n.shape).astype(np.float32)
        for n in graph.nodes
        if n.op.kind == "source"
    }
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(graph, start, fast)


@pytest.mark.parametrize("recipe", ["torchao.rowwise", "te.mxfp8", "te.nvfp4"])
@pytest.mark.parametrize("variant", ["conv in groups", "transposed in groups"])
def test_groups_are_refused_by_recipes_of_rows_and_blocks(variant: str, recipe: str) -> None:
    with pytest.raises(InputError, match=r"of layer 'conv': unknown contraction; expected current"):
        _scaled(variant, recipe)
