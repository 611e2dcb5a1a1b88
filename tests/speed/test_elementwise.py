"""Sums and relu in the C extension: the bits of numpy, alone and in whole training steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.emulator.kernels import elementwise as elementwise_kernels
from policysearch.emulator.kernels.kernel import Kernel
from policysearch.emulator.kernels.registry import offered
from policysearch.emulator.plan import Plan, runs_in_spans
from policysearch.formats import FORMATS, Format, Rounding
from policysearch.graph import Attrs, FloatArray, Graph, Op, Shape, size
from policysearch.layout import stored
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.dense import bias
from policysearch.ops.elementwise import add, relu_grad
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import rounder
from policysearch.train.step import trace_step
from tests.rounding_oracle import ALL
from tests.turns import case

# What follows the batch in a shape: features, or channels, height and width.
TRAILING = ((1,), (7,), (33,), (1, 1, 1), (3, 5, 4), (6, 2, 7), (2, 9, 1))

# Zero, subnormals, the smallest normal number, one, the largest number, infinity, NaNs.
SPECIAL = (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FC00123)
SIGN = 0x80000000

NETS: dict[str, Callable[[], Chain]] = {
    "mlp": lambda: mlp((50, 512, 10)),
    "lenet5": lenet5,
    "transformer": lambda: transformer((1, 32, 32), 10, 64, (16,), 4),
}

Draw = Callable[[np.random.Generator, Shape], FloatArray]


def _gaussian(rng: np.random.Generator, shape: Shape) -> FloatArray:
    """Return values in storage order."""
    array = stored(np.empty(size(shape), np.float32), shape)
    array[...] = rng.standard_normal(shape)
    return array


def _special(rng: np.random.Generator, shape: Shape) -> FloatArray:
    """Return mostly special values of both signs, in storage order."""
    array, taken = _gaussian(rng, shape), rng.random(shape) < 0.8
    bits = rng.choice(np.array([*SPECIAL, *(SIGN | bits for bits in SPECIAL)], np.uint32), shape)
    array.view(np.uint32)[taken] = bits[taken]
    return array


def _bits(array: FloatArray, *, one_nan: bool) -> npt.NDArray[np.uint32]:
    """Return the bits; with `one_nan`, any two NaNs count as equal."""
    same = np.where(np.isnan(array), np.float32(np.nan), array) if one_nan else array
    return np.ascontiguousarray(same).view(np.uint32)


def _run(
    kernel: Kernel,
    inputs: Sequence[FloatArray],
    place: int | None,
    attrs: Attrs | None = None,
) -> FloatArray:
    """Run the kernel into the input at `place`, or into an array that held something else."""
    inputs = [np.copy(array, order="K") for array in inputs]
    shape = inputs[0].shape
    out = stored(np.full(size(shape), 7.0, np.float32), shape) if place is None else inputs[place]
    work = np.empty(kernel.work([array.shape for array in inputs], shape, {}), np.float32)
    with np.errstate(all="ignore"):
        kernel.bind(inputs, out, attrs or {}, work)()
    return out


def _inputs(op: Op, draw: Draw, rng: np.random.Generator, shape: Shape) -> list[FloatArray]:
    second = {"bias": [shape[1:2]], "relu": []}.get(op.name, [shape])
    return [draw(rng, each) for each in (shape, *second)]


@pytest.mark.parametrize("draw", [_gaussian, _special], ids=["gaussian", "special"])
@pytest.mark.parametrize("trailing", TRAILING, ids=str)
@pytest.mark.parametrize("op", [add, bias], ids=lambda op: op.name)
def test_sums_are_rounded_on_the_way(op: Op, trailing: Shape, draw: Draw) -> None:
    pytest.importorskip("policysearch.emulator.kernels._elementwise")
    for fmt in ALL:
        with case(fmt.name):
            assert_rounded_on_the_way(op, fmt, trailing, draw)


def assert_rounded_on_the_way(op: Op, fmt: Format, trailing: Shape, draw: Draw) -> None:
    rng = np.random.default_rng(1)
    for overflow, subnormals in (("inf", "keep"), ("saturate", "keep"), ("inf", "flush")):
        own = rounder(fmt, Rounding("nearest_even", overflow, subnormals))  # type: ignore[arg-type]
        if fmt.ties == "away":
            assert own.kernel_grid is None
            continue
        inputs = _inputs(op, draw, rng, (20, *trailing))
        kernel = offered("C_KERNELS", op, [x.shape for x in inputs], inputs[0].shape, {})
        assert kernel is not None and kernel.rounds
        expected = _run(kernel, inputs, None).ravel(order="K")
        own(expected, expected)
        for place in (None, *op.in_place):
            result = _run(kernel, inputs, place, {"grid": own.kernel_grid}).ravel(order="K")
            assert np.array_equal(_bits(result, one_nan=True), _bits(expected, one_nan=True))


def test_only_sums_take_a_grid() -> None:
    extension = pytest.importorskip("policysearch.emulator.kernels._elementwise")
    x, grid = np.ones((3, 2), np.float32), rounder(FORMATS["float16"]).kernel_grid
    with pytest.raises(TypeError, match="expected 3 arrays"):
        extension.relu_grad(x, x, x.copy(), grid)
    with pytest.raises(ValueError, match="expected a packed grid"):
        extension.add(x, x, x.copy(), b"short")


def test_only_matrices_and_images_are_served() -> None:
    pytest.importorskip("policysearch.emulator.kernels._elementwise")
    shapes: list[Shape] = [(5, 4, 3, 2, 1)[:rank] for rank in range(6)]
    served = [offered("C_KERNELS", add, [shape, shape], shape, {}) is not None for shape in shapes]
    assert served == [False, False, True, False, True, False]


def _step(net: str, policy: str, batch: int) -> tuple[Chain, Graph]:
    model = NETS[net]()
    made = replace(preset(policy, model.layer_names), scaling=Scaling())
    graph = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), batch)
    return model, apply_policy(graph, made)


def _trained(net: str, policy: str, batch: int) -> dict[str, FloatArray]:
    """Return parameters and optimizer state after three steps."""
    model, graph = _step(net, policy, batch)
    executable, rng = compile_graph(graph), np.random.default_rng(1)
    for name, value in model.init(np.random.default_rng(2)).items():
        executable.arrays[name][...] = value
    for name, number in ((LOSS_SCALE, 1), (INVERSE_SCALE, 1), (LEARNING_RATE, 0.1)):
        executable.arrays[name][...] = number
    targets = np.eye(model.classes, dtype=np.float32)
    for step in range(1, 4):
        executable.arrays[STEP_NUMBER][...] = step
        executable.arrays["images"][...] = rng.standard_normal((batch, *model.input_shape))
        executable.arrays[TARGETS][...] = targets[rng.integers(0, model.classes, batch)]
        executable.forward_backward()
        executable.apply_updates()
    return {
        graph.nodes[old].name: executable.arrays[graph.nodes[old].name] for old, _ in graph.updates
    }


@pytest.mark.parametrize("batch", [3, 70])
@pytest.mark.parametrize("policy", ["float32", "float16", "float8"])
@pytest.mark.parametrize("net", NETS)
def test_steps_have_the_same_bits_with_and_without_the_extension(
    monkeypatch: pytest.MonkeyPatch, net: str, policy: str, batch: int
) -> None:
    """At batch 70 the values of these nets are cut into spans, the last one shorter."""
    pytest.importorskip("policysearch.emulator.kernels._elementwise")
    result = _trained(net, policy, batch)
    monkeypatch.setattr(elementwise_kernels, "_elementwise", None)
    for name, expected in _trained(net, policy, batch).items():
        assert np.isfinite(expected).all()
        assert np.array_equal(_bits(result[name], one_nan=False), _bits(expected, one_nan=False)), (
            name
        )


def test_spans_run_in_the_extension_without_scratch() -> None:
    pytest.importorskip("policysearch.emulator.kernels._elementwise")
    _, graph = _step("lenet5", "float32", 70)
    compiled, plain = Plan(graph), Plan(graph, kernels=False)
    nodes = [node for node in compiled.order if node.op is relu_grad]
    assert nodes and all(runs_in_spans(graph, node) for node in nodes)
    for node in nodes:
        assert node.id in plain.span_work and node.id not in compiled.span_work


def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    extension = pytest.importorskip("policysearch.emulator.kernels._elementwise")
    x, shift = np.zeros((3, 4, 5, 6), np.float32), np.zeros(4, np.float32)
    extension.bias(x, shift, x)
    fixed = x.copy()
    fixed.flags.writeable = False
    for name, arrays in (
        ("bias", (x, np.zeros(3, np.float32), x)),
        ("bias", (x, x, x)),
        ("bias", (x[0], shift, x[0])),
        ("bias", (x, shift, x[:2])),
        ("add", (x, x, x[:2])),
        ("add", (x, x[:2], x)),
        ("add", (x, x.reshape(12, 30), x)),
        ("add", (x, x.astype(np.float64), x)),
        ("add", (x, x.view(np.int32), x)),
        ("add", (x, x, fixed)),
        ("add", (x.T, x.T, x.T)),
        ("relu_grad", (x, x, x[:2])),
        ("relu_grad", (x, x[:2], x)),
    ):
        with pytest.raises((ValueError, BufferError)):
            getattr(extension, name)(*arrays)
    with pytest.raises(TypeError):
        extension.add(x, x)
