"""Scaling recipes to the bit, on a million values each: torch does again what the sources say.

What Transformer Engine's references have is in `tests/test_te_quantised.py`. Here is what they do
not have: other formats and granularities, chance, and the parts of a rule told apart. The rules are
those of its CUDA headers (`recipe/recipe_common.cuh`, `cast/nvfp4/core_nvfp4.cuh`, `util/ptx.cuh`),
along rows, in torch, with torch's own casts where it has the format.
"""

from __future__ import annotations

from itertools import product
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
from tests.quantised import COLUMNS, E4M3, ROWS, quantised, values

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

LARGEST = torch.finfo(torch.float32).max


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


def nvfp4_of(x: Any) -> tuple[Any, Any, Any]:
    """Return (values, block scales, tensor scale) as `core_nvfp4.cuh` has them, in rows of 16."""
    blocks = x.abs().reshape(len(x), -1, 16).amax(-1)
    encode = torch.tensor(448.0) * torch.tensor(6.0) / x.abs().amax()
    factor = encode * (1.0 / torch.tensor(6.0))
    scales = torch.clamp(blocks * factor, max=448.0).to(torch.float8_e4m3fn).float()
    inverse = torch.clamp(1.0 / (scales * (1.0 / encode)), max=LARGEST)
    scaled = torch.clamp(x * inverse.repeat_interleave(16, 1), -6.0, 6.0)
    return to_fp4(scaled), scales, encode


def test_the_order_of_the_product_is_told_apart() -> None:
    """`amax / 6 * S_enc` is another scale where it lies by a tie: of some amaxes in bfloat16."""
    blocks = (1 + torch.arange(128) / 128)[:, None] * 2.0 ** torch.arange(-8, 0)
    x = torch.zeros(128, 9 * 16)
    x[:, :128:16], x[0, 128] = blocks, 1 + 124 / 128
    _, scales, tensor = quantised(x.numpy(), Scaling("nvfp4"), "float4_e2m1fn")
    same(scales, nvfp4_of(x)[1])
    before = (blocks / 6.0 * torch.from_numpy(tensor)).to(torch.float8_e4m3fn).float().numpy()
    assert (before != scales[:, :8]).sum() == 24


def test_the_hadamard_transform_of_wgrad() -> None:
    """Signs, Sylvester's matrix, a quarter, where its sums are rounded, too."""
    x = values(3, binades=12)
    *_, turned = quantised(x, Scaling("nvfp4", hadamard=True), "float4_e2m1fn", role="wgrad")
    signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
    entries = [[(-1) ** bin(i & j).count("1") for j in range(16)] for i in range(16)]
    matrix = torch.tensor(signs)[:, None] * torch.tensor(entries) / 4.0
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(16))
    exact = torch.from_numpy(x).T.double().reshape(COLUMNS, -1, 16) @ matrix.double()
    given = torch.from_numpy(turned).T.reshape(COLUMNS, -1, 16).double()
    scale = torch.from_numpy(x).T.double().abs().reshape(COLUMNS, -1, 16).amax(-1, keepdim=True)
    assert float(((given - exact).abs() / scale.clamp(min=1e-30)).max()) < 2.0**-20
    assert float((given - exact).abs().max()) < float(exact.abs().max()) * 2.0**-20


def test_only_gradients_are_rounded_stochastically() -> None:
    x = values(4, binades=8)
    for gradient in (False, True):
        found, scales, _ = quantised(
            x, Scaling("nvfp4"), "float4_e2m1fn", role="dgrad", gradient=gradient
        )
        expected = nvfp4_of(torch.from_numpy(x))
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
@pytest.mark.parametrize(("name", "top"), [("int8", 127), ("hifloat8", 15)])
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
def test_scales_of_rows(power_of_two: bool) -> None:
    x = values(7)
    found, scale = quantised(x, Scaling("rowwise", power_of_two=power_of_two), E4M3)
    given = torch.from_numpy(x)
    amax = given.abs().amax(1, keepdim=True)
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
    kept = np.abs(x).max(1) > 0  # of a row of zeros torchao's scale is another
    granularities: Any = (
        ("TENSORWISE", "current", {}),
        ("AXISWISE", "rowwise", {"axiswise_dim": -1}),
    )
    for (granularity, recipe, axis), power, name in product(
        granularities, (False, True), (E4M3, "float8_e5m2")
    ):
        theirs = hp_tensor_to_float8_dynamic(
            given.bfloat16(),
            getattr(torch, name),
            None,
            scaling_granularity=ScalingGranularity[granularity],
            round_scales_to_power_of_2=power,
            **axis,
        )
        found, scale = quantised(x, Scaling(recipe, power_of_two=power), name)
        same(found[kept], theirs._data.float()[torch.from_numpy(kept)])
        rows = kept if recipe == "rowwise" else slice(None)
        same(scale.reshape(-1)[rows], theirs._scale.reshape(-1)[rows])
    modes = (("FLOOR", "mx"), ("RCEIL", "mx_rceil"))
    for (mode, recipe), name in product(modes, (E4M3, "float8_e5m2")):
        scale, elements = to_mx(
            given.bfloat16(), getattr(torch, name), 32, ScaleCalculationMode[mode]
        )
        found, scales = quantised(x, Scaling(recipe), name)  # type: ignore[arg-type]
        same(found, elements.float())
        same(scales, scale.float())
    assert found.size >= 10**6
