"""Operands quantised by the scaling pass, and the cases that Transformer Engine's references fix.

`tests.record_te` runs those references and keeps digests of what they give in `FILE`;
`tests/test_te_quantised.py` holds the pass to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from policysearch.emulator.compile import compile_graph
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Node
from policysearch.ops.amax import amax
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.scale import amax_history, delayed_scale
from policysearch.ops.source import data
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.scaling_pass import Asked, ScalingPass
from policysearch.rounding.rounder import quantise

FILE = Path(__file__).parent / "data" / "oracle" / "te_quantised.json"
ROWS, COLUMNS = 1024, 1040
SATURATING = Rounding(overflow="saturate")
E4M3, E5M2, E2M1 = "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"


def values(seed: int, whole: bool = True, binades: int = 40) -> FloatArray:
    """Return over a million values in bfloat16 over these binades, rows and blocks of zeros too."""
    rng = np.random.default_rng(seed)
    powers = rng.integers(10 - binades, 10, (ROWS, COLUMNS // 16)).repeat(16, axis=1)
    x = rng.standard_normal((ROWS, COLUMNS)) * 2.0**powers
    x[7], x[9, :64] = 0.0, 0.0
    given = x.astype(np.float32)
    return in_bfloat16(given) if whole else given


def in_bfloat16(x: FloatArray) -> FloatArray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantised(
    x: FloatArray, scaling: Scaling, name: str, source_format: str = "float32", **asked: Any
) -> list[FloatArray]:
    """Return what the pass makes of the first operand of a product: the values, then the scales."""
    role = asked.pop("role", "fprop")
    b = Builder()
    source = b.emit(data, attrs={"shape": x.shape}, role="input", name="x", format=source_format)
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


def without_rounding(seed: int) -> FloatArray:
    """Return values of which every sum of 16 down a column is exact in float32, in bfloat16.

    So no order of the sums of a Hadamard transform decides a bit of it.
    """
    rng = np.random.default_rng(seed)
    powers = rng.integers(-6, 6, (ROWS // 16, COLUMNS)).repeat(16, axis=0)
    parts = np.round(rng.standard_normal((ROWS, COLUMNS)) * 2.0**10)
    return in_bfloat16(in_bfloat16(parts.astype(np.float32)) * 2.0 ** (powers - 10))


def at_the_ends(whole: bool) -> FloatArray:
    """Return squares of 128 values that are zero, tiny, subnormal or up to the largest number."""
    x = values(30, whole, binades=8)[:, :1024].astype(np.float64)
    rng = np.random.default_rng(31)
    squares = x.reshape(ROWS // 128, 128, 8, 128)
    top = float(ml_dtypes.finfo(ml_dtypes.bfloat16 if whole else np.float32).max)
    tops = rng.choice([0.0, 1e-37, 1e-39, top, 1.0], (ROWS // 128, 1, 8, 1))
    made = squares / np.abs(squares).max((1, 3), keepdims=True) * tops
    made = made.reshape(x.shape).astype(np.float32)
    # without negative zeros: the reference of NVFP4 casts these to zero, as no device does
    return (in_bfloat16(made) if whole else made) + np.float32(0.0)


Given = Callable[[], FloatArray]


@dataclass(frozen=True)
class Case:
    """A recipe that quantises: the values it is given and what of the pass is compared.

    `by` names what of Transformer Engine does the same; the others are as `quantised` takes them.
    """

    by: str
    given: Given
    scaling: Scaling
    format: str = E4M3
    source_format: str = "float32"
    role: str = "fprop"
    weight: bool = False

    def found(self) -> dict[str, FloatArray]:
        """Return the values and scales that the package makes, along rows."""
        x, scaling = self.given(), self.scaling
        if scaling.recipe == "delayed":
            return delayed(x, scaling, self.format)
        asked = {"role": self.role, "weight": self.weight}
        made = quantised(x, scaling, self.format, self.source_format, **asked)
        if self.role == "wgrad":
            made = [np.ascontiguousarray(each.T) for each in made]
        if scaling.recipe == "current":
            made[1] = np.float32(1.0) / made[1]
        return dict(zip(("values", "scales", "tensor"), made, strict=False))


def delayed(x: FloatArray, scaling: Scaling, name: str) -> dict[str, FloatArray]:
    """Return each row as its step casts it, and the scale of that step."""
    top = format_named(name).max
    attrs = {"maximum": top, "margin": scaling.margin, "amax": scaling.amax}
    old: FloatArray = np.zeros((), np.float32)
    history: FloatArray = np.zeros(scaling.history, np.float32)
    rows, scales = [], []
    for row in x:
        with np.errstate(divide="ignore"):
            old = np.asarray(delayed_scale.forward((history, old), attrs))
        rows.append(quantise(row * old, format_named(name), SATURATING))
        scales.append(old)
        largest = np.asarray(amax.forward((row,), {}))
        history = np.asarray(amax_history.forward((history, largest), {}))
    return {"values": np.stack(rows), "scales": np.array(scales, np.float32)}


def digests(arrays: dict[str, FloatArray]) -> dict[str, str]:
    """Return the SHA-256 of each array's bits in float32."""
    return {
        name: hashlib.sha256(np.ascontiguousarray(each, np.float32).tobytes()).hexdigest()
        for name, each in arrays.items()
    }


def _float8_cases(source: str) -> dict[str, Case]:
    given: Given = lambda: values(20, source == "bfloat16")  # noqa: E731
    found = {}
    for name, form in (("e4m3", E4M3), ("e5m2", E5M2)):
        for power in (False, True):
            words = f"{name}{', power of two' * power}, of {source}"
            current = Scaling("current", power_of_two=power)
            found[f"current: {words}"] = Case("current", given, current, form, source)
            for side in (1, 128):
                blocks = Scaling(
                    "blocks", power_of_two=power, weights="rows" if side == 1 else "squares"
                )
                row = Case("blocks", given, blocks, form, source, weight=side > 1)
                # of blocks at the edges that are not whole, too
                cut = replace(row, given=lambda: given()[:1011, :1000])
                found[f"{side} x 128: {words}"] = cut
                ends = replace(row, given=lambda: at_the_ends(source == "bfloat16"))
                found[f"{side} x 128 at the ends: {words}"] = ends
    return found


def _mxfp8_cases(source: str) -> dict[str, Case]:
    found = {}
    for side in (1, 32):
        scaling = Scaling("mx_rceil", weights="rows" if side == 1 else "squares")
        row = Case("mx", lambda: at_the_ends(source == "bfloat16"), scaling, E4M3, source)
        row = replace(row, weight=side > 1)
        found[f"MXFP8 {side} x 32 at the ends, of {source}"] = row
        usual = lambda: values(21, source == "bfloat16")[:, :1024]  # noqa: E731
        found[f"MXFP8 {side} x 32, of {source}"] = replace(row, given=usual)
    return found


def _nvfp4_cases(source: str) -> dict[str, Case]:
    found = {}
    given = lambda: values(22, source == "bfloat16", binades=12)  # noqa: E731
    for chosen in (False, True):
        words = f"{', 4over6' * chosen}, of {source}"
        row = Case("nvfp4", given, Scaling("nvfp4", four_over_six=chosen), E2M1, source)
        by_row = replace(row.scaling, tensor="rows")
        squares = replace(row.scaling, weights="squares")
        found[f"NVFP4{words}"] = row
        found[f"NVFP4, row-scaled{words}"] = replace(row, scaling=by_row)
        found[f"NVFP4, 16 x 16{words}"] = replace(row, scaling=squares, weight=True)
    turned = Scaling("nvfp4", hadamard=True)
    exact = Case("nvfp4", lambda: without_rounding(23), turned, E2M1, source, role="wgrad")
    found[f"NVFP4, Hadamard, of {source}"] = exact
    ends = Case("nvfp4", lambda: at_the_ends(source == "bfloat16"), Scaling("nvfp4"), E2M1, source)
    found[f"NVFP4 at the ends, of {source}"] = ends
    return found


def _delayed_cases() -> dict[str, Case]:
    # as many steps as make a million values: their amaxes over 40 binades, and none of them 0
    given = lambda: values(24)[:, :1024].reshape(-1, 128)[64:]  # noqa: E731
    found = {}
    for rule in ("max", "most_recent"):
        for form, margin in ((E4M3, 0), (E5M2, 2)):
            scaling = Scaling("delayed", margin=margin, history=16, amax=rule)
            found[f"delayed: {rule}, margin {margin}"] = Case("delayed", given, scaling, form)
    return found


CASES: dict[str, Case] = _delayed_cases()
for _source in ("bfloat16", "float32"):
    CASES |= {**_float8_cases(_source), **_mxfp8_cases(_source), **_nvfp4_cases(_source)}
