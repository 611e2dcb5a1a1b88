"""Formats per product: what each product of a step reads, and where that comes from."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.graph import Graph, Node
from policysearch.nn.models import mlp, transformer
from policysearch.ops.block_scale import spread_scales
from policysearch.policy.policy import LayerPolicy, Policy, from_data, from_json, to_data
from policysearch.policy.presets import preset
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.scaled_steps import E4M3, NETS, fill, policy_of, step_of
from tests.turns import turns

NARROW = ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
NET = mlp((64, 48, 10), activation="tanh")


def products_of(graph: Graph, layer: str = "fc2") -> dict[str, Node]:
    """Return the products of a layer by role."""
    found = [n for n in graph.nodes if n.op.kind == "gemm" and n.layer == layer]
    return {node.role: node for node in found}


def operands_of(graph: Graph, role: str, layer: str = "fc2") -> tuple[Node, Node]:
    first, second = graph.inputs_of(products_of(graph, layer)[role])[:2]
    return first, second


def came_through(graph: Graph, node: Node) -> set[str]:
    """Return the narrow formats that a value of this step has been rounded to on its way here."""
    found, waiting = set(), [node]
    while waiting:
        value = waiting.pop()
        if value.op.converts:
            found |= {value.format} & set(NARROW)
        if value.op.converts or value.op.kind == "move":
            waiting.append(graph.nodes[value.inputs[0]])
    return found


@pytest.mark.parametrize("recipe", ["none", "current", "delayed", "rowwise", "mx_rceil", "blocks"])
def test_a_gradient_product_in_high_precision_reads_high_precision(recipe: str) -> None:
    """torchao's `rowwise_with_gw_hp` and TE's `backward_override="high_precision"`."""
    scaling = Scaling(recipe)  # type: ignore[arg-type]
    graph = step_of(NET, policy_of(NET, scaling, replace(E4M3, grad="bfloat16")))
    assert {n.format for n in operands_of(graph, "fprop")} == {"float8_e4m3fn"}
    for role in ("dgrad", "wgrad"):
        for operand in operands_of(graph, role):
            assert operand.format == "bfloat16"
            assert came_through(graph, operand) == set()


@pytest.mark.parametrize("recipe", ["current", "rowwise", "mx_rceil", "blocks", "nvfp4"])
def test_dequantised_operands_are_what_the_forward_product_has_read(recipe: str) -> None:
    """TE's `backward_override="dequantized"`: one copy, and its values to the bit."""
    name = "float4_e2m1fn" if recipe == "nvfp4" else "float8_e4m3fn"
    layer = LayerPolicy(name, "bfloat16", "bfloat16", "bfloat16", backward="forward")
    graph = step_of(NET, policy_of(NET, Scaling(recipe), layer))  # type: ignore[arg-type]
    forward = graph.inputs_of(products_of(graph)["fprop"])
    for role, place in (("dgrad", 1), ("wgrad", 0)):
        read = next(n for n in operands_of(graph, role) if n.op.name == "dequantise")
        assert read.format == "bfloat16" and came_through(graph, read) == {name}
        assert read.inputs[0] == forward[place].id
        watched = {"read": read.id, **{f"given{k}": i for k, i in enumerate(read.inputs)}}
        executable = compile_graph(replace(graph, outputs=tuple(watched.items())))
        rng = np.random.default_rng(3)
        fill(executable, {k: v for k, v in NET.init(rng).items()})
        executable.arrays["images"][...] = rng.standard_normal((8, 64))
        executable.forward_backward()
        copy, *scales = (executable.value(f"given{k}") for k in range(len(read.inputs)))
        one, attrs = np.float32(1), read.attributes
        if "axis" not in attrs:
            expected = copy * (one / scales[0])
        else:
            factor = scales[0] * (one / scales[1]) if scales[1:] else scales[0]
            expected = copy * spread_scales(factor, copy.shape, attrs["axis"], attrs["block"])
        rounded = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_array_equal(executable.value("read"), rounded)
        assert np.abs(rounded).max() > 0 and (rounded != 0).mean() > 0.5


def test_narrow_gradients_beside_a_wide_forward_take_narrow_operands() -> None:
    """TE's `high_precision_fwd_mxfp8_bwd`, and NVFP4 backward alone."""
    wide = LayerPolicy("bfloat16", "bfloat16", "float8_e5m2", "bfloat16")
    graph = step_of(NET, policy_of(NET, "mx_rceil", wide))
    assert {n.format for n in operands_of(graph, "fprop")} == {"bfloat16"}
    for role in ("dgrad", "wgrad"):
        assert {n.format for n in operands_of(graph, role)} == {"float8_e5m2", "float8_e4m3fn"}
    graph = step_of(NET, policy_of(NET, "nvfp4", replace(wide, grad="float4_e2m1fn")))
    for role in ("dgrad", "wgrad"):
        assert {n.format for n in operands_of(graph, role)} == {"float4_e2m1fn"}


def test_one_product_alone_is_said_in_full() -> None:
    """torchao's `rowwise_with_gw_hp`: wgrad in high precision, dgrad as ever."""
    wide = Product(Operand("bfloat16"), Operand("bfloat16"), "chunked:32:float32")
    layer = replace(E4M3, products=Products(wgrad=wide))
    graph = step_of(NET, policy_of(NET, "rowwise", layer))
    assert {n.format for n in operands_of(graph, "wgrad")} == {"bfloat16"}
    assert {n.format for n in operands_of(graph, "dgrad")} == {"float8_e4m3fn"}
    sums = {role: n.accumulator for role, n in products_of(graph).items()}
    assert sums == {"fprop": "float32", "dgrad": "float32", "wgrad": "chunked:32:float32"}


def test_a_layer_and_an_operand_have_recipes_of_their_own() -> None:
    fp4 = LayerPolicy("float4_e2m1fn", "bfloat16", "float4_e2m1fn", "bfloat16")
    other = Product(
        Operand("float8_e4m3fn", scaling=Scaling("current")),
        Operand("float8_e4m3fn", scaling=Scaling("rowwise"), mode="toward_zero"),
    )
    layers = {
        "fc1": replace(fp4, scaling=Scaling("nvfp4")),
        "fc2": replace(E4M3, products=Products(wgrad=other)),
    }
    policy = policy_of(NET, "mx_rceil").with_layers(layers)
    graph = step_of(NET, policy)
    rules = {
        layer: {n.op.name for n in graph.nodes if n.layer == layer and n.op.name.endswith("scale")}
        for layer in layers
    }
    assert rules["fc1"] == {"tensor_scale", "nvfp4_scale", "descale"}
    assert rules["fc2"] == {"mx_rceil_scale", "tensor_scale", "descale"}
    second = next(n for n in operands_of(graph, "wgrad") if n.rounding.mode == "toward_zero")
    assert graph.nodes[second.inputs[1]].shape == (1, 48)
    assert_gives_the_bits_of_the_reference(graph, started(graph, NET), "off")


def test_the_forward_copy_is_quantised_again_where_that_is_asked() -> None:
    """TE's `mxfp8_fwd_nvfp4_bwd`: the backward weight from the dequantised MXFP8 copy."""
    nvfp4 = Scaling("nvfp4")
    dgrad = Product(
        Operand("float4_e2m1fn", scaling=nvfp4),
        Operand("float4_e2m1fn", "forward", scaling=nvfp4, mode="nearest_even"),
    )
    layer = replace(E4M3, products=Products(dgrad=dgrad))
    graph = step_of(NET, policy_of(NET, "mx_rceil", layer))
    weight = next(n for n in operands_of(graph, "dgrad") if n.shape == (10, 48))
    assert came_through(graph, weight) == {"float8_e4m3fn", "float4_e2m1fn"}
    assert graph.nodes[weight.inputs[0]].op.name == "dequantise"


@pytest.mark.parametrize(
    ("scaling", "backward", "net"),
    turns(
        [
            Scaling("nvfp4", weights="squares", hadamard=True),
            Scaling("nvfp4", tensor="rows"),
            Scaling("blocks", power_of_two=True, weights="squares"),
            Scaling("mx_rceil", weights="squares"),
        ],
        ["tensor", "forward"],
        ["convolutions", "mlp", "transformer"],
    ),
    ids=lambda value: getattr(value, "recipe", None),
)
def test_recipes_give_the_bits_of_the_reference_and_leave_no_trace(
    scaling: Scaling, backward: str, net: str
) -> None:
    model, grads = NETS[net], {}
    name = "float4_e2m1fn" if scaling.recipe == "nvfp4" else "float8_e4m3fn"
    layer = LayerPolicy(name, "bfloat16", name, "bfloat16", backward=backward)  # type: ignore[arg-type]
    graph = step_of(model, policy_of(model, scaling, layer))
    assert_gives_the_bits_of_the_reference(graph, started(graph, model), "off")
    for key, policy in (
        ("float32", policy_of(model, "none", LayerPolicy())),
        ("scaled", policy_of(model, scaling, layer)),
    ):
        executable = compile_graph(step_of(model, policy, 32))
        values = started(executable.graph, model)
        fill(executable, {k: v for k, v in values.items() if k in executable.arrays})
        executable.forward_backward()
        names = [k for k, _ in executable.graph.outputs if k.startswith("grad:")]
        grads[key] = {k: executable.value(k).copy() for k in names if k.endswith("weight")}
    least = 0.75 if scaling.recipe == "nvfp4" else 0.97
    for key, exact in grads["float32"].items():
        found = grads["scaled"][key]
        norms = float(np.linalg.norm(found)), float(np.linalg.norm(exact))
        assert np.vdot(found, exact) / norms[0] / norms[1] > least, key
        assert norms[0] / norms[1] == pytest.approx(1, abs=0.3), key


def test_square_blocks_are_one_copy_for_both_directions() -> None:
    for weights, copies in (("rows", 2), ("squares", 1)):
        scaling = Scaling("mx_rceil", weights=weights)  # type: ignore[arg-type]
        graph = step_of(NET, policy_of(NET, scaling, E4M3))
        casts = [n for n in graph.nodes if n.op.name == "block_cast" and n.shape == (10, 48)]
        assert len(casts) == copies


def test_only_wgrad_is_turned() -> None:
    scaling = Scaling("nvfp4", weights="squares", hadamard=True)
    graph = step_of(NET, policy_of(NET, scaling, replace(E4M3, compute="float4_e2m1fn")), 32)
    turned = [n for n in graph.nodes if n.op.name == "hadamard"]
    assert {n.role for n in turned} == {"wgrad"} and len(turned) == 4
    assert {n.attributes["axis"] for n in turned} == {0}


def mixed(backward: str) -> Policy:
    layer = replace(E4M3, grad="bfloat16", backward=backward)  # type: ignore[arg-type]
    return policy_of(NET, "mx_rceil", layer)


def test_a_file_of_version_1_trains_what_it_has_trained() -> None:
    """Its split read the other operand narrow: said in full now, under another digest."""
    policy = mixed("tensor")
    data = {**to_data(policy), "version": 1}
    old = from_data(data)
    assert old.version == 2 and old.digest != policy.digest
    graph = step_of(NET, old)
    assert {n.format for n in operands_of(graph, "dgrad")} == {"bfloat16", "float8_e4m3fn"}
    assert {n.format for n in operands_of(graph, "wgrad")} == {"bfloat16", "float8_e4m3fn"}
    assert from_json(old.to_json()) == old


def test_what_has_kept_its_meaning_keeps_its_digest() -> None:
    """Read from a recorded file of version 1: a digest outlives the version."""
    policy = preset("te.mxfp8", ("fc1", "fc2"))
    assert "products" not in policy.to_json() and "hadamard" not in policy.to_json()
    assert from_data({**to_data(policy), "version": 1}) == policy
    digests = {mixed("tensor").digest, mixed("forward").digest}
    assert len(digests) == 2


def test_what_cannot_be_read_is_refused_in_one_line() -> None:
    data = json.loads(mixed("tensor").to_json())
    with pytest.raises(InputError, match=r"version: 3; expected 2"):
        from_data({**data, "version": 3})
    with pytest.raises(InputError, match=r"first.source: 'forward'; expected 'tensor'"):
        Product(Operand("bfloat16", "forward"), Operand("bfloat16"))
    product = Product(Operand("bfloat16"), Operand("bfloat16", "forward"))
    with pytest.raises(InputError, match=r"fprop.second.source: 'forward'"):
        Products(fprop=product)
    with pytest.raises(InputError, match=r"hadamard: True with recipe 'mx'; expected"):
        Scaling("mx", hadamard=True)
    with pytest.raises(InputError, match=r"weights: 'squares' with recipe 'current'; expected"):
        Scaling("current", weights="squares")
    data["layers"]["fc1"]["products"] = {"fprop": {"first": {"format": "float9"}}}
    with pytest.raises(InputError, match=r"policy.layers.fc1.products.fprop.first.format: unknown"):
        from_data(data)


def test_attention_reads_what_its_products_say() -> None:
    """Without a weight, the two tensors are the first and the second operand."""
    net = transformer((4, 12), 10, hidden=(24,), width=16, heads=2)
    layer = replace(E4M3, grad="bfloat16", backward="forward")
    graph = step_of(net, policy_of(net, "current", layer))
    backward = [n for n in graph.nodes if n.op.kind == "gemm" and n.role == "dgrad"]
    assert backward and {i.format for n in backward for i in graph.inputs_of(n)[:2]} == {"bfloat16"}
    assert any(i.op.name == "dequantise" for n in backward for i in graph.inputs_of(n))
