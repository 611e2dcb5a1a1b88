"""Delayed scaling's state, what scaling costs, and where no scaling belongs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.memory import step_memory
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import step_time
from policysearch.data.datasets import load_dataset
from policysearch.emulator.compile import compile_graph
from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph, size
from policysearch.nn.models import mlp
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.dense import transposed
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, own
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Phase, uniform_layer, with_accumulator
from policysearch.policy.presets import preset
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Recipe, Scaling
from policysearch.products.tensor_cores import tensor_core
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rewrite.scaling_pass import Asked, ScalingPass
from policysearch.rounding.rounder import Fast, quantise
from policysearch.train.step import trace_forward, trace_step
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.rounding_oracle import FASTS
from tests.scaled_steps import E4M3, FP4, HYBRID, NETS, fill, policy_of, step_of


@pytest.mark.parametrize("rule", ["max", "most_recent"])
def test_delayed_scales_come_from_the_steps_before(rule: Any) -> None:
    model = mlp((4, 3), activation="tanh")
    policy = policy_of(model, Scaling("delayed", margin=1, history=2, amax=rule), E4M3)
    executable = compile_graph(step_of(model, policy, 2))
    fill(executable, {LOSS_SCALE: 1.0, INVERSE_SCALE: 1.0})
    used, histories = [], []
    for largest in (2.0, 7.0, 1.0, 0.0, 0.0, 0.0, 3.0):
        executable.arrays["images"][...] = largest
        executable.forward_backward()
        assert executable.value("amax:fc1.input") == largest
        executable.apply_updates()
        used.append(float(executable.arrays[own("fc1.input.scale")]) / 448 * 2)
        histories.append(executable.arrays[own("fc1.input.amax_history")].tolist())
    # a zero is not rolled in (delayed_scaling.cu)
    assert histories == [[2, 0], [7, 2], [1, 7], [1, 7], [1, 7], [1, 7], [3, 1]]
    amaxes = [2, 7, 7, 7, 7, 7] if rule == "max" else [2, 7, 1, 1, 1, 1]
    assert used == pytest.approx([2 / 448, *(1 / a for a in amaxes)])


def test_a_skipped_step_and_a_forward_pass_leave_the_history() -> None:
    model = mlp((4, 3), activation="tanh")
    policy = policy_of(model, "delayed", E4M3)
    executable = compile_graph(step_of(model, policy, 2))
    executable.arrays["images"][...] = 5.0
    executable.forward_backward()
    assert not executable.arrays[own("fc1.input.amax_history")].any()
    executable.apply_updates()
    alone = compile_graph(apply_policy(trace_forward(model, 2), policy), sources=executable.arrays)
    alone.arrays["images"][...] = 9.0
    alone.forward_backward()
    alone.apply_updates()
    assert executable.arrays[own("fc1.input.amax_history")].tolist() == [5, 0, 0, 0]
    assert not [node for node in alone.graph.nodes if node.op.name == "amax"]


def test_delayed_state_survives_phases() -> None:
    task = Task(model="mlp", widths=(16,), data="digits", batch_size=32, steps=6, tail_steps=2)
    dataset = load_dataset("digits")
    model = task.build_model(dataset)
    wide = tuple((name, uniform_layer("bfloat16")) for name in model.layer_names)
    policy = policy_of(model, "delayed")
    policy = replace(policy, phases=(Phase(2, wide), Phase(4, policy.layers)))
    trainer = Trainer(model, task, policy, 0)
    trainer.load(model.init(np.random.default_rng(0)))
    (images,), labels = dataset.train
    filled = []
    for first in range(0, 6 * 32, 32):
        trainer.step((images[first : first + 32],), labels[first : first + 32])
        filled.append(int(np.count_nonzero(trainer._shared[own("fc1.weight.amax_history")])))
    assert filled == [1, 2, 2, 2, 3, 4]
    assert trainer._shared[own("fc1.weight.scale")] > 1.0
    accuracy = trainer.accuracy(*dataset.validation)
    assert accuracy is not None and accuracy > 0.05


WIDE = mlp((1024, 1024, 1024, 1024), activation="relu")


def _bytes_per_element(graph: Graph) -> dict[str, float]:
    """Return the bytes that amax and scaled cast move per element, by the tensor they read."""
    moved: dict[str, float] = {}
    for kernel in step_time(graph, DEVICES["H100-SXM5"], STACKS["torch.eager"]).kernels:
        if kernel.op in ("amax", "scaled_cast"):
            (node,) = (graph.nodes[i] for i in kernel.node_ids)
            given = graph.nodes[node.inputs[0]]
            key = f"{given.op.name} {given.format}"
            moved[key] = moved.get(key, 0.0) + kernel.bytes / size(given.shape)
    return moved


def test_current_scaling_moves_the_bytes_that_are_published() -> None:
    """About 6 per activation or gradient and 8 per weight, a transposed copy included there.

    Here 2 (amax) + 3 (cast) in bfloat16, 4 + 5 in float32; no transposed copy is made.
    """
    graph = step_of(WIDE, policy_of(WIDE, "current"), 1024)
    moved = _bytes_per_element(graph)
    assert moved["relu bfloat16"] / 2 == pytest.approx(5, rel=1e-3)  # two hidden activations
    assert moved["parameter float32"] / 3 == pytest.approx(9, rel=1e-3)
    formats = {
        k.format
        for k in step_time(graph, DEVICES["H100-SXM5"], STACKS["torch.eager"]).kernels
        if k.op == "matmul"
    }
    assert formats == {"float8_e4m3fn"}


@pytest.mark.parametrize(("recipe", "layer"), [("mx", E4M3), ("mx_rceil", E4M3), ("nvfp4", FP4)])
def test_products_over_blocks_run_in_the_format_of_their_elements(
    recipe: Recipe, layer: LayerPolicy
) -> None:
    graph = step_of(WIDE, policy_of(WIDE, recipe, layer), 256)
    kernels = step_time(graph, DEVICES["B200-SXM"], STACKS["torch.eager"]).kernels
    products = [kernel for kernel in kernels if kernel.op == "matmul_blocks"]
    assert len(products) == 8 and {k.format for k in products} == {layer.compute}


def test_delayed_state_counts_as_memory() -> None:
    graphs = [step_of(WIDE, policy_of(WIDE, recipe), 64) for recipe in ("current", "delayed")]
    kept = [step_memory(graph).optimizer_bytes for graph in graphs]
    operands = 3 + 3 + 3  # inputs, weights and gradients of three layers
    assert kept[1] - kept[0] == operands * (4 + 1) * 4


def test_wide_operands_and_recipe_none_are_not_scaled() -> None:
    model = NETS["mlp"]
    half = policy_of(model, "current", uniform_layer("float16"))
    assert apply_policy(
        trace_step(model, "softmax_cross_entropy", Optimizer(), 4), half
    ) == apply_policy(
        trace_step(model, "softmax_cross_entropy", Optimizer(), 4),
        replace(half, scaling=Scaling()),
    )
    plain = step_of(model, policy_of(model, "none"))
    assert {n.op.name for n in plain.nodes} & {"amax", "scaled_cast", "descale"} == set()
    assert {n.rounding.overflow for n in plain.nodes} == {"inf"}
    scaled = step_of(model, policy_of(model, "current"))
    casts = [n for n in scaled.nodes if n.format.startswith("float8")]
    assert {n.op.name for n in casts} == {"scaled_cast"}
    assert {n.rounding for n in casts} == {Rounding(overflow="saturate")}


def test_one_scaled_operand_is_divided_out_alone() -> None:
    model = NETS["mlp"]
    product = Product(Operand("bfloat16"), Operand("float8_e4m3fn"))
    mixed = replace(HYBRID, products=Products(dgrad=product, wgrad=product))
    graph = step_of(model, policy_of(model, "current", mixed))
    scales = {n.role: len(n.inputs) - 1 for n in graph.nodes if n.op.name == "descale"}
    assert scales == {"fprop": 2, "dgrad": 1, "wgrad": 1}


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ["te.mxfp8", "te.nvfp4"])
def test_scales_of_blocks_go_into_an_exact_accumulator(name: str, fast: Fast) -> None:
    """The product of a step is that of its operands and of their scales as they are stored."""
    model = NETS["mlp"]
    policy = with_accumulator(preset(name, model.layer_names), "tensor_core.b200")
    graph = step_of(model, policy)
    node = next(n for n in graph.nodes if n.op.name == "matmul_blocks" and n.role == "dgrad")
    reads = {str(k): i for k, i in enumerate((node.id, *node.inputs[:4]))}
    watched = replace(graph, outputs=(*graph.outputs, *reads.items()))
    assert_gives_the_bits_of_the_reference(watched, started(watched, model), fast)
    step = compile_graph(watched)
    fill(step, started(watched, model))
    step.forward_backward()
    found, *operands = (step.value(name).copy() for name in reads)
    spread = [
        scales.repeat(block, axis).repeat(across[-1] if across else 1, across[0] if across else 0)
        for scales, (_, axis, block, *across) in zip(
            operands[2:], node.attributes["blocks"], strict=True
        )
    ]
    left, right = transposed(operands[0], operands[1], node.attributes)
    of_left, of_right = transposed(
        spread[0][: operands[0].shape[0], : operands[0].shape[1]],
        spread[1][: operands[1].shape[0], : operands[1].shape[1]],
        node.attributes,
    )
    first, second, scale = (format_named(graph.nodes[i].format) for i in node.inputs[:3])
    exact = tensor_core("b200", first, second, scale=scale)
    out = np.empty(found.shape, np.float32)
    exact.matmul(left, right, out, (of_left, of_right))
    assert exact.exact == (16 if name == "te.nvfp4" else 0) and np.abs(found).max() > 0
    np.testing.assert_array_equal(found, quantise(out, format_named(node.format)))


def test_a_recipe_that_does_not_fit_is_refused() -> None:
    model = NETS["mlp"]
    policy = policy_of(model, "mx", replace(E4M3, accumulator="tensor_core.h100"))
    with pytest.raises(
        InputError, match=r"layer 'fc1': accumulator 'tensor_core.h100' with scales of blocks"
    ):
        step_of(model, policy)
    there = replace(E4M3, accumulator="tensor_core.b200")
    with pytest.raises(InputError, match="powers of two"):
        step_of(model, policy_of(model, "blocks", there))
    mixed = Product(Operand("float8_e4m3fn"), Operand("float8_e4m3fn", scaling=Scaling("current")))
    with pytest.raises(InputError, match="expected a matrix product of two operands in blocks"):
        step_of(model, policy_of(model, "mx", replace(there, products=Products(fprop=mixed))))
    with pytest.raises(InputError, match=r"layer 'conv\d': .* expected a matrix product of two"):
        step_of(NETS["convolutions"], policy_of(NETS["convolutions"], "mx", there))
    b = Builder()
    x = b.emit(OPS["data"], attrs={"shape": (4, 4)}, name="x")
    odd = b.nodes[b.emit(replace(OPS["matmul"], name="outer"), x, x, layer="fc9")]
    scaler = ScalingPass(b, trains=False)
    asked = Asked("float8_e4m3fn", Scaling("mx"), "fc9.input", Rounding())
    with pytest.raises(InputError, match=r"op 'outer' of layer 'fc9'.*expected current or delayed"):
        scaler.operand(x, asked, odd, 0)


def test_parameters_kept_in_float8_are_the_scaled_copies() -> None:
    """Rounded to float8 before they are scaled, small weights would all be zero."""
    model = NETS["mlp"]
    graph = step_of(model, policy_of(model, "current", replace(E4M3, param=E4M3.compute)))
    scaled = [graph.inputs_of(node)[0] for node in graph.nodes if node.op.name == "scaled_cast"]
    weights = [given for given in scaled if given.shape == graph.source("fc2.weight").shape]
    assert [given.name for given in weights] == ["fc2.weight"]


@pytest.mark.parametrize("recipe", ["current", "mx"])
def test_chunked_accumulators_take_scaled_operands(recipe: Recipe) -> None:
    model = mlp((96, 40), activation="tanh")
    results = []
    for accumulator in ("float32", "chunked:32:float32", "chunked:32:bfloat16"):
        policy = policy_of(model, recipe, replace(E4M3, accumulator=accumulator))
        executable = compile_graph(apply_policy(trace_forward(model, 8), policy))
        fill(executable, model.init(np.random.default_rng(1)))
        executable.arrays["images"][...] = np.random.default_rng(2).standard_normal((8, 96))
        executable.forward_backward()
        results.append(executable.value("logits").copy())
    assert np.mean(results[0] == results[1]) > 0.97
    assert np.mean(results[0] != results[2]) > 0.1
    np.testing.assert_allclose(results[0], results[2], atol=0.05)


@pytest.mark.parametrize(
    ("name", "compute", "grad", "scaling"),
    [
        ("te.delayed", "float8_e4m3fn", "float8_e5m2", Scaling("delayed", 0, 1024, "max")),
        ("te.current", "float8_e4m3fn", "float8_e5m2", Scaling("current")),
        ("te.mxfp8", "float8_e4m3fn", "float8_e4m3fn", Scaling("mx_rceil")),
        ("ocp.mxfp8", "float8_e4m3fn", "float8_e4m3fn", Scaling("mx")),
        (
            "te.nvfp4",
            "float4_e2m1fn",
            "float4_e2m1fn",
            Scaling("nvfp4", weights="squares", hadamard=True),
        ),
        ("torchao.tensorwise", "float8_e4m3fn", "float8_e5m2", Scaling("current")),
        (
            "torchao.rowwise",
            "float8_e4m3fn",
            "float8_e4m3fn",
            Scaling("rowwise", power_of_two=True),
        ),
    ],
)
def test_presets_are_the_defaults_of_the_frameworks(
    name: str, compute: str, grad: str, scaling: Scaling
) -> None:
    policy = preset(name, ("fc1",))
    layer = policy.layer("fc1")
    assert (layer.compute, layer.grad, policy.scaling) == (compute, grad, scaling)
    assert (layer.output, layer.wgrad, layer.dgrad) == ("bfloat16",) * 3


def test_nvfp4_rounds_only_gradients_stochastically() -> None:
    model = NETS["mlp"]
    graph = step_of(model, policy_of(model, "nvfp4", FP4))
    modes = {
        (graph.nodes[node.inputs[0]].role in ("dgrad", "wgrad"), node.rounding.mode)
        for node in graph.nodes
        if node.op.name == "block_cast" and graph.nodes[node.inputs[0]].op.name != "cast"
    }
    assert (False, "stochastic") not in modes
    drawn = [n for n in graph.nodes if n.rounding.mode == "stochastic"]
    assert {n.op.name for n in drawn} == {"block_cast"} and len(drawn) == 5
