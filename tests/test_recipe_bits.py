"""Scaling recipes to the bit, on a million values each: torch does again what the sources say.

The rules are those of Transformer Engine's CUDA headers (`recipe/recipe_common.cuh`,
`cast/nvfp4/core_nvfp4.cuh`, `util/ptx.cuh`) and of its reference quantiser
(`custom_recipes/reference_nvfp4.py`), derived from what they compute: along rows, in torch, with
torch's own casts where it has the format.
"""

from __future__ import annotations

from typing import Any

import en_dtypes
import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Node
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import data
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.scaling_pass import Asked, ScalingPass

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROWS, COLUMNS = 1024, 1040
VALUES = ROWS * COLUMNS
LARGEST = torch.finfo(torch.float32).max
E4M3 = "float8_e4m3fn"


def values(seed: int, whole: bool = True, binades: int = 40) -> FloatArray:
    """Return over a million values in bfloat16 over these binades, rows and blocks of zeros too."""
    rng = np.random.default_rng(seed)
    powers = rng.integers(10 - binades, 10, (ROWS, COLUMNS // 16)).repeat(16, axis=1)
    x = rng.standard_normal((ROWS, COLUMNS)) * 2.0**powers
    x[7], x[9, :64] = 0.0, 0.0
    given = torch.from_numpy(x.astype(np.float32))
    return np.asarray((given.bfloat16() if whole else given).float().numpy())


def quantised(x: FloatArray, scaling: Scaling, name: str, **asked: Any) -> list[FloatArray]:
    """Return what the pass makes of the first operand of a product: the values, then the scales."""
    role = asked.pop("role", "fprop")
    b = Builder()
    source = b.emit(data, attrs={"shape": x.shape}, role="input", name="x")
    other = b.emit(data, attrs={"shape": x.shape}, role="input", name="y")
    attrs = {"transpose_a": True} if role == "wgrad" else {"transpose_b": True}
    product: Node = b.nodes[
        b.emit(OPS["matmul"], source, other, attrs=attrs, layer="fc", role=role)
    ]
    scaler = ScalingPass(b, trains=False)
    made = scaler.operand(source, Asked(name, scaling, "fc.input", Rounding(), **asked), product, 0)
    given = [i for i in (made.node, made.block_scales, made.scale) if i is not None]
    turned = [n.id for n in b.nodes if n.op.name == "hadamard"]
    step = compile_graph(b.graph({str(k): i for k, i in enumerate([*given, *turned])}))
    step.arrays["x"][...] = x
    step.forward_backward()
    return [step.value(str(k)).copy() for k in range(len([*given, *turned]))]


def same(found: FloatArray, expected: Any) -> None:
    np.testing.assert_array_equal(found, expected.numpy().reshape(found.shape))


def shifted_of(x: Any, kind: Any, shift: float = 1.0) -> tuple[Any, Any]:
    """Return x times `shift` in a dtype of 8 bits, and its scale, as XLA compiles qwix."""
    x, one = x * shift, torch.tensor(1.0)
    scale = x.abs().amax() * (one / torch.finfo(kind).max)
    return (x * (one / scale)).to(kind).float(), scale


def with_shift(grad: FloatArray, weight: FloatArray) -> list[FloatArray]:
    """Return what dgrad reads of both under recipe "shifted", and the gradient's scale."""
    b = Builder()
    shape = {"shape": grad.shape}
    g, w = (b.emit(data, attrs=shape, role="input", name=name) for name in "gw")
    product: Node = b.nodes[b.emit(OPS["matmul"], g, w, layer="fc", role="dgrad")]
    scaler, asked = ScalingPass(b, trains=False), (Scaling("shifted"), "fc", Rounding())
    other = scaler.operand(w, Asked("float8_e4m3fn", *asked, weight=True), product, 1)
    assert other.shift is not None
    taken = scaler.shifted(g, other.shift, product)
    made = scaler.operand(taken, Asked("float8_e5m2", *asked, gradient=True), product, 0)
    assert made.shift is not None
    step = compile_graph(b.graph({"grad": made.node, "weight": other.node, "scale": made.shift}))
    step.arrays["g"][...], step.arrays["w"][...] = grad, weight
    step.forward_backward()
    return [step.value(name).copy() for name in ("grad", "weight", "scale")]


def test_a_shifted_scale_decides_how_a_tie_falls() -> None:
    """Of a gradient that lies halfway between numbers of E5M2, but for its largest value."""
    fell = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        weight = rng.standard_normal((32, 32)).astype(np.float32)
        grad = rng.choice([1.125, 1.375, 1.625], (32, 32)).astype(np.float32)
        grad[0, 0] = 1.75
        found, read, scale = with_shift(grad, weight)
        by_weight, shift = shifted_of(torch.from_numpy(weight), torch.float8_e4m3fn)
        expected, its_scale = shifted_of(torch.from_numpy(grad), torch.float8_e5m2, shift)
        same(found, expected)
        same(read, by_weight)
        same(scale, its_scale)
        fell.add(float(found[grad == np.float32(1.125)][0]))
    assert fell == {32768.0, 40960.0}


def to_fp4(x: Any) -> Any:
    """Round to e2m1 by the midpoints between its numbers, ties to the even code."""
    size = x.abs()
    found = torch.zeros_like(size)
    limits = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    numbers = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for place, (limit, number) in enumerate(zip(limits, numbers, strict=True)):
        reached = size >= limit if place % 2 else size > limit
        found = torch.where(reached, torch.tensor(number), found)
    return torch.where(x < 0, -found, found)


def nvfp4_of(x: Any, by_row: bool, square: bool) -> tuple[Any, Any, Any]:
    """Return (values, block scales, tensor scale) as `core_nvfp4.cuh` has them, in rows of 16."""
    rows, columns = x.shape
    blocks = x.abs().reshape(rows, columns // 16, 16).amax(-1)
    if square:
        tiles = x.abs().reshape(rows // 16, 16, columns // 16, 16).amax((1, 3))
        blocks = tiles.repeat_interleave(16, 0)
    amax = x.abs().amax(1, keepdim=True) if by_row else x.abs().amax()
    encode = torch.clamp(torch.tensor(448.0) * torch.tensor(6.0) / amax, max=LARGEST)
    encode = torch.where(amax == 0, torch.tensor(1.0), encode)
    factor = encode * (1.0 / torch.tensor(6.0))
    scales = torch.clamp(blocks * factor, max=448.0).to(torch.float8_e4m3fn).float()
    inverse = torch.clamp(1.0 / (scales * (1.0 / encode)), max=LARGEST)
    scaled = torch.clamp(x * inverse.repeat_interleave(16, 1), -6.0, 6.0)
    return to_fp4(scaled), scales, encode


@pytest.mark.parametrize(("by_row", "square"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("seed", [0, 1])
def test_nvfp4_as_transformer_engine_quantises(by_row: bool, square: bool, seed: int) -> None:
    x = values(seed, whole=seed == 0, binades=(40, 12)[seed])
    scaling = Scaling(
        "nvfp4", weights="squares" if square else "rows", tensor="rows" if by_row else "whole"
    )
    found, scales, tensor = quantised(x, scaling, "float4_e2m1fn", weight=square)
    expected = nvfp4_of(torch.from_numpy(x), by_row, square)
    assert found.size >= 10**6 and np.unique(np.abs(found)).size == 8
    same(found, expected[0])
    same(scales.repeat(16, 0) if square else scales, expected[1])
    same(tensor, expected[2])


def four_over_six_of(x: Any, by_row: bool, square: bool) -> tuple[Any, Any]:
    """Return (values, block scales) as `_quantize_blockwise_4over6_reference` has them."""
    rows, columns = x.shape
    blocks = x.abs().reshape(rows, -1, 16).amax(-1)
    if square:
        tiles = x.abs().reshape(rows // 16, 16, columns // 16, 16).amax((1, 3))
        blocks = tiles.repeat_interleave(16, 0)
    amax = x.abs().amax(1, keepdim=True) if by_row else x.abs().amax()
    encode = torch.clamp(torch.tensor(256.0) * torch.tensor(6.0) / amax, max=LARGEST)
    encode = torch.where(amax == 0, torch.tensor(1.0), encode)
    found = []
    for share in (1.5, 1.0):
        scales = torch.clamp(blocks / torch.tensor(6.0) * encode * share, max=448.0)
        scales = scales.to(torch.float8_e4m3fn).float()
        inverse = torch.clamp(1.0 / (scales * (1.0 / encode)), max=LARGEST)
        codes = to_fp4(torch.clamp(x * inverse.repeat_interleave(16, 1), -6.0, 6.0))
        kept = codes * scales.repeat_interleave(16, 1) * amax / torch.tensor(6.0 * 256.0)
        each = (kept - x).abs().reshape(rows, -1, 16)
        lost = torch.zeros_like(blocks)
        for place in range(16):
            lost = lost + each[..., place]
        if square:
            tree = lost.reshape(rows // 16, 16, -1)
            while tree.shape[1] > 1:
                half = tree.shape[1] // 2
                tree = tree[:, :half] + tree[:, half:]
            lost = tree[:, 0].repeat_interleave(16, 0)
        found.append((codes, scales, lost))
    four = found[0][2] < found[1][2]
    assert 0.001 < float(four.float().mean()) < 0.9  # of squares, few
    codes = torch.where(four.repeat_interleave(16, 1), found[0][0], found[1][0])
    return codes, torch.where(four, found[0][1], found[1][1])


@pytest.mark.parametrize(("by_row", "square"), [(False, False), (True, False), (False, True)])
def test_nvfp4_takes_four_or_six(by_row: bool, square: bool) -> None:
    x = values(9, binades=12)
    scaling = Scaling(
        "nvfp4",
        weights="squares" if square else "rows",
        tensor="rows" if by_row else "whole",
        four_over_six=True,
    )
    found, scales, _ = quantised(x, scaling, "float4_e2m1fn", weight=square)
    expected = four_over_six_of(torch.from_numpy(x), by_row, square)
    assert found.size >= 10**6
    same(found, expected[0])
    same(scales.repeat(16, 0) if square else scales, expected[1])


def test_the_order_of_the_product_is_told_apart() -> None:
    """`amax / 6 * S_enc` is another scale where it lies by a tie: of some amaxes in bfloat16."""
    blocks = (1 + torch.arange(128) / 128)[:, None] * 2.0 ** torch.arange(-8, 0)
    x = torch.zeros(128, 9 * 16)
    x[:, :128:16], x[0, 128] = blocks, 1 + 124 / 128
    _, scales, tensor = quantised(x.numpy(), Scaling("nvfp4"), "float4_e2m1fn")
    same(scales, nvfp4_of(x, False, False)[1])
    before = (blocks / 6.0 * torch.from_numpy(tensor)).to(torch.float8_e4m3fn).float().numpy()
    assert (before != scales[:, :8]).sum() == 24


def test_the_hadamard_transform_of_wgrad() -> None:
    """Signs, Sylvester's matrix, a quarter; the amax is that of its outputs."""
    x = values(3, binades=12)
    scaling = Scaling("nvfp4", hadamard=True)
    found, scales, tensor, turned = quantised(x, scaling, "float4_e2m1fn", role="wgrad")
    signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
    entries = [[(-1) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]
    matrix = torch.tensor(signs)[:, None] * torch.tensor(entries) / 4.0
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(16))
    exact = torch.from_numpy(x).T.double().reshape(COLUMNS, -1, 16) @ matrix.double()
    given = torch.from_numpy(turned).T.reshape(COLUMNS, -1, 16).double()
    scale = torch.from_numpy(x).T.double().abs().reshape(COLUMNS, -1, 16).amax(-1, keepdim=True)
    assert float(((given - exact).abs() / scale.clamp(min=1e-30)).max()) < 2.0**-20
    assert float((given - exact).abs().max()) < float(exact.abs().max()) * 2.0**-20
    # given its outputs, to the bit
    expected = nvfp4_of(torch.from_numpy(np.ascontiguousarray(turned.T)), False, False)
    same(np.ascontiguousarray(found.T), expected[0])
    same(np.ascontiguousarray(scales.T), expected[1])
    same(tensor, expected[2])


def test_only_gradients_are_rounded_stochastically() -> None:
    x = values(4, binades=8)
    for gradient in (False, True):
        found, scales, _ = quantised(
            x, Scaling("nvfp4"), "float4_e2m1fn", role="dgrad", gradient=gradient
        )
        expected = nvfp4_of(torch.from_numpy(x), False, False)
        same(scales, expected[1])
        share = float((torch.from_numpy(found) != expected[0]).float().mean())
        assert 0.05 < share < 0.6 if gradient else share == 0
        if gradient:  # each is one of the two neighbours, and right on average
            inverse = torch.clamp(1.0 / (expected[1] * (1.0 / expected[2])), max=LARGEST)
            wanted = torch.clamp(torch.from_numpy(x) * inverse.repeat_interleave(16, 1), -6, 6)
            off = torch.from_numpy(found) - wanted
            assert float(off.abs().max()) < 2.0 and abs(float(off.mean())) < 1e-3


def cast(scaled: Any, name: str) -> Any:
    """Round to the nearest number of the format, by torch's own dtypes where it has them."""
    if name == "int8":
        return scaled.round().to(torch.int8).float()
    if name == "hifloat8":
        there = scaled.numpy().astype(en_dtypes.hifloat8).astype(np.float32)
        return torch.from_numpy(np.copysign(there, scaled.numpy()))
    return to_fp4(scaled) if name == "float4_e2m1fn" else scaled.to(getattr(torch, name)).float()


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize(
    ("name", "top"), [(E4M3, 448), ("float8_e5m2", 57344), ("int8", 127), ("hifloat8", 15)]
)
def test_blocks_of_128(power_of_two: bool, square: bool, name: str, top: float) -> None:
    """`compute_scale_from_amax`: max / amax, its mantissa cut off for a power of two."""
    x = values(5)[:, :1024]
    scaling = Scaling(
        "blocks",
        power_of_two=power_of_two,
        weights="squares" if square else "rows",
        top=0.0 if top == format_named(name).max else top,
    )
    found, inverse = quantised(x, scaling, name, weight=square)
    assert found.size >= 10**6
    given = torch.from_numpy(x)
    amax = given.abs().reshape(ROWS, -1, 128).amax(-1)
    if square:
        amax = given.abs().reshape(ROWS // 128, 128, -1, 128).amax((1, 3)).repeat_interleave(128, 0)
    scale = torch.tensor(top) / amax
    scale = torch.where(amax == 0, torch.tensor(1.0), torch.clamp(scale, max=LARGEST))
    if power_of_two:
        scale = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    scaled = torch.clamp(given * scale.repeat_interleave(128, 1), -top, top)
    same(found, cast(scaled, name))
    same(inverse.repeat(128, 0) if square else inverse, 1.0 / scale)


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("recipe", ["mx", "mx_rceil"])
@pytest.mark.parametrize("name", [E4M3, "float8_e5m2", "float4_e2m1fn", "int8"])
def test_mx_in_rows_and_squares(square: bool, recipe: str, name: str) -> None:
    """Rounded down as OCP has it, or `float_to_e8m0(amax * (1 / max))`, on every block."""
    x, row = values(6)[:, :1024], format_named(name)
    scaling = Scaling(recipe, weights="squares" if square else "rows")  # type: ignore[arg-type]
    found, scales = quantised(x, scaling, name, weight=square)
    assert found.size >= 10**6
    given = torch.from_numpy(x)
    amax = given.abs().reshape(ROWS, -1, 32).amax(-1)
    if square:
        amax = given.abs().reshape(ROWS // 32, 32, -1, 32).amax((1, 3)).repeat_interleave(32, 0)
    if recipe == "mx":
        power = torch.floor(torch.log2(amax.double())) - row.max_exponent
    else:
        power = torch.ceil(torch.log2((amax * torch.tensor(1.0 / row.max)).double()))
    scale = torch.pow(2.0, power.clamp(-127, 127)).float()
    scaled = torch.clamp(given / scale.repeat_interleave(32, 1), -row.max, row.max)
    same(found, cast(scaled, name))
    same(scales.repeat(32, 0) if square else scales, scale)


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("recipe", ["current", "rowwise"])
def test_scales_of_tensors_and_rows(power_of_two: bool, recipe: str) -> None:
    x = values(7)
    scaling = Scaling(recipe, power_of_two=power_of_two)  # type: ignore[arg-type]
    found, scale = quantised(x, scaling, E4M3)
    given = torch.from_numpy(x)
    amax = given.abs().amax(1, keepdim=True) if recipe == "rowwise" else given.abs().amax()
    expected = torch.where(amax == 0, torch.tensor(1.0), torch.tensor(448.0) / amax)
    if power_of_two:
        expected = (expected.view(torch.int32) & 0x7F800000).view(torch.float32)
    same(scale, expected)
    same(found, torch.clamp(given * expected, -448.0, 448.0).to(torch.float8_e4m3fn).float())


@pytest.mark.torchao
def test_torchao_casts_the_same() -> None:
    """Its float8 tensors, per tensor and per row, and its MX tensors rounded either way."""
    pytest.importorskip("torchao")
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    x = values(8)[:, :1024]
    given = torch.from_numpy(x)
    for granularity, recipe in (("TENSORWISE", "current"), ("AXISWISE", "rowwise")):
        axis = {"axiswise_dim": -1} if recipe == "rowwise" else {}
        theirs = hp_tensor_to_float8_dynamic(
            given.bfloat16(),
            torch.float8_e4m3fn,
            None,
            scaling_granularity=ScalingGranularity[granularity],
            round_scales_to_power_of_2=True,
            **axis,
        )
        found, _ = quantised(x, Scaling(recipe, power_of_two=True), E4M3)  # type: ignore[arg-type]
        kept = np.abs(x).max(1) > 0  # of a row of zeros torchao's scale is another
        same(found[kept], theirs._data.float()[torch.from_numpy(kept)])
    for mode, recipe in (("FLOOR", "mx"), ("RCEIL", "mx_rceil")):
        scale, elements = to_mx(
            given.bfloat16(), torch.float8_e4m3fn, 32, ScaleCalculationMode[mode]
        )
        found, scales = quantised(x, Scaling(recipe), E4M3)  # type: ignore[arg-type]
        same(found, elements.float())
        same(scales, scale.float())
    assert found.size >= 10**6
