"""The time model against counts by hand, and the properties every row and policy must keep."""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle

import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.gemm import Extents, aligned_share, extents, utilisation
from policysearch.cost.kernels import kernels_of
from policysearch.cost.memory import node_bytes, storage_of
from policysearch.cost.roofline import FITTED
from policysearch.cost.stacks import STACKS, Stack
from policysearch.cost.time import StepTime, step_time
from policysearch.formats import FORMATS
from policysearch.graph import Graph
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.builder import Builder
from policysearch.ops.conv import conv2d, conv2d_wgrad
from policysearch.ops.dense import bias, matmul
from policysearch.ops.elementwise import add, relu
from policysearch.ops.shape import reshape
from policysearch.ops.source import cast, data, parameter
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError
from tests.cost_steps import WIDE, product, step
from tests.turns import turns

V100, A100 = DEVICES["V100-SXM2"], DEVICES["A100-SXM4-80GB"]
EAGER, COMPILED, MINDSPORE = (
    STACKS[name] for name in ("torch.eager", "torch.compile", "mindspore.graph")
)


def test_product_roofline_by_hand() -> None:
    (kernel,) = step_time(product(4096, 4096, 4096), V100, EAGER).kernels
    # 32 x 32 tiles of 128 x 128 on 80 multiprocessors make 13 waves of which 12.8 are full
    used = 1024 / (13 * 80) * 4096 / (4096 + 64)
    assert kernel.flops == 2 * 4096**3
    assert kernel.bytes == 3 * 4096**2 * 2
    assert (kernel.bound, kernel.format) == ("compute", "float16")
    used *= (4096 + 64) / (4096 + FITTED.pipeline_depth)
    achieved = 125e12 * V100.achieved_share("float16") * FITTED.product_share
    compute = 2 * 4096**3 / (achieved * used)
    traffic = kernel.bytes / (900e9 * FITTED.bandwidth_share)
    expected = math.hypot(compute, traffic) + FITTED.kernel_seconds
    assert kernel.seconds == pytest.approx(expected, rel=1e-9)


def test_thin_product_is_bound_by_bandwidth() -> None:
    (kernel,) = step_time(product(16, 4096, 16384), V100, EAGER).kernels
    moved = (16 * 4096 + 4096 * 16384 + 16384 * 16) * 2
    assert kernel.bound == "bandwidth"
    traffic = moved / (900e9 * FITTED.bandwidth_share)
    assert traffic < kernel.seconds < 1.4 * traffic


def test_small_work_takes_the_minimum_and_the_host_its_launches() -> None:
    time = step_time(product(8, 8, 8), V100, EAGER)
    assert time.kernels[0].bound == "minimum"
    assert time.kernels[0].seconds == pytest.approx(FITTED.kernel_seconds, rel=0.2)
    assert time.host_bound
    launches = EAGER.launch_seconds * FITTED.launch_factor
    assert time.step_seconds == pytest.approx(math.hypot(time.kernels[0].seconds, launches))


@pytest.mark.parametrize(
    ("e", "multiprocessors", "expected"),
    [
        (Extents(1, 128, 128, 64, (64,)), 1, 0.5),
        (Extents(1, 1280, 1280, 1e12, (64,)), 100, 1.0),
        (Extents(101, 128, 128, 1e12, (64,)), 100, 101 * 128 / 13000),
        (Extents(1, 128, 128, 96, (96,)), 4, 0.75 * 96 / 160),
    ],
)
def test_utilisation_by_hand(e: Extents, multiprocessors: int, expected: float) -> None:
    assert utilisation(e, multiprocessors) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("e", "library", "expected"),
    [
        (Extents(1, 1280, 1280, 64, (64,)), 12, 1.0),
        (Extents(1, 1280, 1280, 9, (9,)), 12, 9 / 16),
        (Extents(1, 1280, 1280, 3, (3,)), 12, 0.5),
        (Extents(1, 1280, 1280, 9, (9,)), 10, 0.0),
        (Extents(1, 1280, 1280, 9, (8, 9), convolution=True), 10, 9 / 16),
        (Extents(1, 1280, 1280, 9, (8, 8), convolution=True), 9, 0.0),
        (Extents(8, 1280, 1, 9, (1, 1), convolution=True, depthwise=True), 12, 0.0),
    ],
)
def test_alignment_depends_on_the_library(e: Extents, library: int, expected: float) -> None:
    """NVIDIA's guide to performance of products: any alignment from cuBLAS 11 on, none before."""
    assert aligned_share(e, 8, library) == expected


def test_convolution_extents() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (8, 3, 32, 32)})
    w = b.emit(parameter, attrs={"shape": (16, 3, 5, 5)})
    y = b.emit(conv2d, x, w)
    found = extents(b.nodes[y], b.nodes[:2], 2 * 8 * 28 * 28 * 16 * 75)
    assert found == Extents(1, 8 * 28 * 28, 16, 75.0, (3,), convolution=True)


def elementwise(stack: Stack, fused: bool = False) -> tuple[Graph, tuple[tuple[str, ...], ...]]:
    """matmul -> bias -> relu -> cast to float16, and its kernels by op."""
    b = Builder()
    x = b.emit(data, attrs={"shape": (64, 32)})
    w = b.emit(parameter, attrs={"shape": (16, 32)})
    offset = b.emit(parameter, attrs={"shape": (16,)})
    y = b.emit(matmul, x, w, attrs={"transpose_b": True}, fused=fused)
    z = b.emit(relu, b.emit(bias, y, offset))
    graph = b.graph({"out": b.emit(cast, z, format="float16")})
    kernels = kernels_of(graph, stack)
    return graph, tuple(tuple(node.op.name for node in kernel.nodes) for kernel in kernels)


def test_what_each_stack_fuses() -> None:
    assert elementwise(EAGER)[1] == (("matmul", "bias"), ("relu",), ("cast",))
    assert elementwise(COMPILED)[1] == (("matmul", "bias"), ("relu", "cast"))
    assert elementwise(MINDSPORE)[1] == (("matmul", "bias", "relu", "cast"),)


def test_a_fused_value_is_never_stored() -> None:
    bare = dataclasses.replace(EAGER, bias_fusion=False)
    assert elementwise(bare)[1][0] == ("matmul",)
    graph, kernels = elementwise(bare, fused=True)
    assert kernels[0] == ("matmul", "bias")
    (kernel, *_) = kernels_of(graph, bare)
    assert [node.op.name for node in kernel.writes] == ["bias"]
    (first, second, third) = step_time(graph, V100, bare).kernels
    assert first.bytes == 4 * (64 * 32 + 16 * 32 + 16 + 64 * 16)
    assert (second.bytes, third.bytes) == (4 * 2 * 64 * 16, (4 + 2) * 64 * 16)
    assert [kernel.is_cast for kernel in (first, second, third)] == [False, False, True]


def test_nothing_is_fused_around_what_has_to_run_between() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (32, 32)})
    y = b.emit(relu, x)
    z = b.emit(matmul, y, x)
    graph = b.graph({"out": b.emit(add, y, z)})
    assert [len(kernel.nodes) for kernel in kernels_of(graph, COMPILED)] == [1, 1, 1]


def test_element_rate_by_hand() -> None:
    device, count = DEVICES["Ascend-910A"], 10**7
    b = Builder()
    x = b.emit(data, attrs={"shape": (count,)}, format="float16")
    graph = b.graph({"y": b.emit(relu, x, format="float16")})
    (kernel,) = step_time(graph, device, MINDSPORE).kernels
    elements = 2 * count * FITTED.elementwise / (8.2e12 / 2)
    traffic = 4 * count / (1024e9 * FITTED.bandwidth_share)
    assert kernel.bound == ("elements" if elements > traffic else "bandwidth")
    assert kernel.seconds == pytest.approx(math.hypot(elements, traffic) + FITTED.kernel_seconds)


def test_views_and_tfloat32_casts_are_free() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (4, 6)})
    y = b.emit(cast, b.emit(reshape, x, attrs={"shape": (24,)}), format="tfloat32")
    z = b.emit(relu, y, format="tfloat32")
    graph = b.graph({"z": z})
    assert storage_of(graph) == [0, 0, 0, 3]
    assert [k.op for k in step_time(graph, A100, EAGER).kernels] == ["relu"]


@pytest.mark.parametrize(
    ("policy", "stack"), [*zip(PRESETS, cycle(STACKS.values()), strict=False)], ids=[*PRESETS]
)
def test_every_node_runs_in_one_kernel_and_kernels_can_be_ordered(
    policy: str, stack: Stack
) -> None:
    graph = step(lenet5(), policy, 4, "adam")
    kernels, root = kernels_of(graph, stack), storage_of(graph)
    home = {node.id: k for k, kernel in enumerate(kernels) for node in kernel.nodes}
    placed = sorted(node.id for kernel in kernels for node in kernel.nodes)
    assert placed == [n.id for n in graph.nodes if n.op.kind != "source" and root[n.id] == n.id]
    left = {
        k: {home[root[i]] for n in kernel.nodes for i in n.inputs if root[i] in home} - {k}
        for k, kernel in enumerate(kernels)
    }
    while left:
        ready = [k for k, above in left.items() if not above & left.keys()]
        assert ready, "kernels wait for each other"
        for k in ready:
            del left[k]
    finite = dict(graph.outputs).get("finite", math.inf)
    for kernel in kernels:
        ids = [node.id for node in kernel.nodes]
        assert max(ids) <= finite or min(ids) > finite


@pytest.mark.parametrize(("optimizer", "bytes"), [("sgd", 12), ("momentum", 20), ("adam", 28)])
def test_optimizer_bytes_per_parameter(optimizer: str, bytes: int) -> None:
    graph = step(WIDE, "float32", 8, optimizer)
    (update,) = (k for k in step_time(graph, A100, EAGER).kernels if k.role == "update")
    count = sum(math.prod(spec.shape) for spec in WIDE.parameters())
    assert update.bytes / count == pytest.approx(bytes, rel=1e-5)
    assert update.bound == "bandwidth"


def test_loss_scaling_adds_one_pass_over_the_gradients() -> None:
    policy = dataclasses.replace(
        preset("float32", WIDE.layer_names), loss_scale=LossScale("fixed", 128.0)
    )
    graph = trace_step(WIDE, "softmax_cross_entropy", Optimizer(), 8)
    kernels = step_time(apply_policy(graph, policy), A100, EAGER).kernels
    count = sum(math.prod(spec.shape) for spec in WIDE.parameters())
    unscale, update = (kernel for kernel in kernels if kernel.role == "update")
    assert unscale.bytes / count == pytest.approx(8, rel=1e-5)
    assert update.bytes / count == pytest.approx(20, rel=1e-5)


def test_the_finite_check_rides_along_where_gradients_differ_in_format() -> None:
    policy = preset("float16", WIDE.layer_names).with_layers({"fc1": uniform_layer("float32")})
    graph = apply_policy(trace_step(WIDE, "softmax_cross_entropy", Optimizer(), 8), policy)
    kernels = step_time(graph, A100, COMPILED).kernels
    moved = sum(kernel.bytes for kernel in kernels if kernel.role == "update")
    first = 2048 * 2048 + 2048
    rest = sum(math.prod(spec.shape) for spec in WIDE.parameters()) - first
    assert moved == pytest.approx((8 + 20) * first + (6 + 20) * rest, rel=1e-5)


def test_updates_read_narrow_parameters_without_a_pass_of_their_own() -> None:
    kernels = step_time(step(WIDE, "apex.O3", 8), A100, EAGER).kernels
    update = [kernel for kernel in kernels if kernel.role == "update"]
    count = sum(math.prod(spec.shape) for spec in WIDE.parameters())
    assert [kernel.op for kernel in update] == ["scale"]
    # parameter, gradient and velocity read, parameter and velocity written, 2 bytes each
    assert update[0].bytes / count == pytest.approx(10, rel=1e-5)


@pytest.mark.parametrize(
    ("device", "net", "stack"),
    turns(DEVICES, [(lenet5(), 16), (mlp((128, 256, 128), "relu"), 4)], [*STACKS.values()]),
)
def test_halving_the_bits_is_never_slower(
    device: str, net: tuple[Chain, int], stack: Stack
) -> None:
    """Whole steps in one format, without any cast or layout change, on formats the device has.

    Below 16 bits only where extents meet the alignment: LeNet-5 pads 1 channel to 16 there.
    """
    (model, fewest_bits), row = net, DEVICES[device]
    graph = trace_step(model, "softmax_cross_entropy", Optimizer(), 32)
    stack, seconds = dataclasses.replace(stack, layout="NHWC"), []
    for name in ("float32", "bfloat16", "float16", "float8_e5m2", "float4_e2m1fn"):
        if row.runs_as(name) == name and FORMATS[name].bits >= fewest_bits:
            nodes = tuple(dataclasses.replace(node, format=name) for node in graph.nodes)
            whole = dataclasses.replace(graph, nodes=nodes)
            seconds.append((FORMATS[name].bits, step_time(whole, row, stack).step_seconds))
    for bits, time in seconds:
        assert all(time >= other for fewer, other in seconds if fewer < bits)


def test_a_launch_takes_no_negative_time() -> None:
    with pytest.raises(InputError, match=r"^stack torch\.eager: launch_seconds: -1e-06; expected"):
        dataclasses.replace(STACKS["torch.eager"], launch_seconds=-1e-6)


@pytest.mark.parametrize("stack", STACKS)
def test_alternating_formats_pay_for_their_casts(stack: str) -> None:
    """Half the layers in float16, each alone among float32 ones, against the same as one block.

    Every layer has the same shape, so the two differ only in where casts are.
    """
    model = mlp((256,) * 11, "relu")
    uniform = preset("float16", model.layer_names)
    wide = uniform_layer("float32")
    graph = trace_step(model, "softmax_cross_entropy", Optimizer(), 32768)

    def run(in_float32: tuple[int, ...]) -> StepTime:
        kept = {f"{kind}{i}" for kind in ("fc", "relu") for i in in_float32}
        policy = uniform.with_layers({n: wide for n in model.layer_names if n in kept})
        return step_time(apply_policy(graph, policy), A100, STACKS[stack])

    alternated, block = run((1, 3, 5, 7, 9)), run((1, 2, 3, 4, 5))
    assert alternated.step_seconds > block.step_seconds
    assert alternated.step_seconds > run(()).step_seconds
    if stack == "torch.eager":
        assert alternated.cast_seconds > 1.5 * block.cast_seconds


def test_nchw_stacks_transpose_around_convolutions_on_the_matrix_unit() -> None:
    eager = step_time(step(lenet5(), "float16", 512), A100, EAGER)
    channels_last = dataclasses.replace(EAGER, layout="NHWC")
    assert "transpose" not in {
        k.op for k in step_time(step(lenet5(), "float16", 512), A100, channels_last).kernels
    }
    assert "transpose" not in {
        k.op for k in step_time(step(lenet5(), "float32", 512), A100, EAGER).kernels
    }
    assert all(k.launches == 2 for k in eager.kernels if k.op == "transpose")


@pytest.mark.parametrize(("window", "share"), [(3, 1.0), (1, 0.5)])
def test_layout_changes_are_of_the_images_that_a_convolution_reads(
    window: int, share: float
) -> None:
    """One of each image; of half the convolutions of one pixel, which run as plain products."""
    b, padding = Builder(), {"padding": window // 2}
    x = b.emit(data, attrs={"shape": (64, 64, 56, 56)}, format="float16")
    w = b.emit(parameter, attrs={"shape": (128, 64, window, window)}, format="float16")
    y = b.emit(conv2d, x, w, attrs=padding, format="float16")
    marks = {"shape": (128, 64, window, window), **padding}
    wgrad = b.emit(conv2d_wgrad, y, x, attrs=marks, role="wgrad", format="float16")
    graph = b.graph({"y": y, "w": wgrad})
    image, result = (node_bytes(graph.nodes[i]) for i in (x, y))
    shifts = [k for k in step_time(graph, A100, EAGER).kernels if k.op == "transpose"]
    assert [k.bytes for k in shifts] == [2 * share * image, 2 * share * (image + result)]
