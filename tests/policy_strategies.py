"""Hypothesis strategies for policies."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from policysearch.accumulators import ACCUMULATORS
from policysearch.formats import FORMATS, Rounding
from policysearch.policy.loss_scale import RULES, LossScale, LossScaleKind
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Phase, Policy, RoleRounding
from policysearch.policy.preset_row import LISTED_OPS
from policysearch.policy.scaling import Scaling

FORMAT_NAMES = st.sampled_from([*FORMATS, "e5m7", "e4m3fn"])
SCALES = st.floats(2.0**-126, 2.0**126)
BOUNDS = st.none() | SCALES
NAMES = st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=8)


def layer_policies() -> st.SearchStrategy[LayerPolicy]:
    return st.builds(
        LayerPolicy,
        *[FORMAT_NAMES] * 5,
        accumulator=st.sampled_from([*ACCUMULATORS, "chunked:64:float16"]),
        gradient_sum=st.none() | FORMAT_NAMES,
        all_reduce=st.none() | FORMAT_NAMES,
    )


@st.composite
def loss_scales(draw: st.DrawFn) -> LossScale:
    kind = draw(st.sampled_from(get_args(LossScaleKind)))
    steps = draw(st.sets(st.integers(0, 2**31), min_size=1, max_size=3))
    return LossScale(
        kind,
        draw(SCALES),
        draw(st.floats(1.0, 2.0**16)),
        draw(st.floats(2.0**-16, 1.0)),
        draw(st.integers(1, 2**31)),
        draw(BOUNDS),
        draw(BOUNDS),
        draw(st.booleans()),
        tuple((step, draw(SCALES)) for step in sorted(steps)) if kind == "schedule" else (),
        draw(st.sampled_from(tuple(RULES))),
    )


def scalings() -> st.SearchStrategy[Scaling]:
    return st.one_of(
        st.builds(
            Scaling, st.sampled_from(["none", "mx", "mx_rceil", "nvfp4"]), margin=st.integers(0, 64)
        ),
        st.builds(
            Scaling,
            st.sampled_from(["current", "delayed", "rowwise"]),
            st.integers(0, 64),
            st.integers(1, 65536),
            st.sampled_from(["max", "most_recent"]),
            st.booleans(),
        ),
    )


def roundings() -> st.SearchStrategy[Rounding]:
    return st.builds(
        Rounding,
        st.sampled_from(["nearest_even", "toward_zero", "nearest_away", "stochastic"]),
        st.sampled_from(["inf", "saturate"]),
        st.sampled_from(["keep", "flush"]),
    )


@st.composite
def parallels(draw: st.DrawFn) -> Parallel:
    """Any valid way to spread a step."""
    tensor = draw(st.integers(1, 16))
    return Parallel(
        tensor * draw(st.integers(1, 64)),
        tensor,
        draw(st.integers(0, 3)),
        draw(st.sampled_from(["tensors", "buckets", "combined"])),
        draw(st.floats(1e-3, 1e3)),
        draw(st.booleans()),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any valid policy, its op lists a partition of the known ops."""
    layers = draw(st.dictionaries(NAMES, layer_policies(), max_size=3))
    places = [draw(st.integers(0, 2)) for _ in LISTED_OPS]
    low, fp32, promote = (
        tuple(op for op, place in zip(LISTED_OPS, places, strict=True) if place == number)
        for number in range(3)
    )
    firsts = sorted(draw(st.sets(st.integers(1, 2**31), max_size=2)))
    changed = st.sets(st.sampled_from(sorted(layers)), max_size=2) if layers else st.just(set())
    phases = tuple(
        Phase(first, tuple((name, draw(layer_policies())) for name in sorted(draw(changed))))
        for first in firsts
    )
    return Policy(
        draw(NAMES),
        tuple(layers.items()),
        low,
        fp32,
        promote,
        bias=draw(st.sampled_from(["fused", "rounded", "fp32", "convolution_rounded"])),
        casts=draw(st.sampled_from(["op", "layer"])),
        norm_inner=draw(st.sampled_from(["float32", "format"])),
        master_weights=draw(st.booleans()),
        optimizer_state=draw(FORMAT_NAMES),
        optimizer_order=draw(st.sampled_from(["fused", "eager"])),
        optimizer_scalars=draw(st.sampled_from(["float32", "storage"])),
        all_reduce=draw(FORMAT_NAMES),
        parallel=draw(parallels()),
        loss_scale=draw(loss_scales()),
        scaling=draw(scalings()),
        rounding=draw(st.builds(RoleRounding, *[roundings()] * 4)),
        phases=phases,
    )
