"""Presets: complete, as the frameworks define them, and fit for every model."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from policysearch.formats import format_named
from policysearch.graph import Op, Placement
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS, OPS
from policysearch.ops.elementwise import relu
from policysearch.policy import preset_row, presets
from policysearch.policy.loss_scale import RULES
from policysearch.policy.policy import LayerPolicy, Policy, from_json
from policysearch.policy.preset_row import LISTED_OPS
from policysearch.policy.presets import PRESETS, preset
from policysearch.train.loss_scale import initial_state, next_state
from policysearch.values import InputError

LAYERS = ("conv1", "relu1", "fc1")


def placement(policy: Policy, op: str) -> list[str]:
    lists = {
        "low": policy.low_precision_ops,
        "fp32": policy.fp32_ops,
        "promote": policy.promote_ops,
    }
    return [name for name, ops in lists.items() if op in ops]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_complete(name: str) -> None:
    policy = preset(name, LAYERS)
    assert policy.name == name
    policy.check_layers(LAYERS)
    assert from_json(policy.to_json()) == policy
    for op in (*LISTED_OPS, *FORWARD_OPS):
        assert len(placement(policy, op)) == 1, op
    assert placement(policy, "softmax_cross_entropy") == ["fp32"]
    assert placement(policy, "mean_squared_error") == ["fp32"]


@pytest.mark.parametrize(
    ("name", "low", "fp32", "promote"),
    [
        ("mindspore.O1", "conv2d matmul bias relu", "max_pool gelu softmax add", ""),
        ("mindspore.O1", "", "tanh sigmoid silu hardtanh leaky_relu hardswish dropout sqrt", ""),
        ("mindspore.O1", "", "subtract multiply divide scale shift mean where masked_fill", ""),
        ("mindspore.O1", "", "slice concatenate embedding average_pool batch_norm", ""),
        ("mindspore.O1", "", "reshape transpose broadcast_to layer_norm", ""),
        ("mindspore.O2", "conv2d relu max_pool softmax gelu add pow", "batch_norm layer_norm", ""),
        ("mindspore.O2", "rsqrt sum log cumsum cumprod prod vector_norm interpolate", "", ""),
        ("mindspore.O3", "conv2d relu softmax batch_norm layer_norm exp", "", ""),
        ("mindspore.auto", "conv2d matmul", "softmax layer_norm batch_norm", "bias concatenate"),
        ("apex.O1", "conv2d matmul bias", "softmax gelu layer_norm rsqrt", "relu add concatenate"),
        ("apex.O2", "conv2d relu softmax layer_norm", "batch_norm", ""),
        ("apex.O3", "conv2d relu softmax batch_norm sum", "", ""),
        ("torch.autocast.float16", "conv2d matmul bias", "softmax layer_norm", "relu gelu add"),
        ("torch.autocast.bfloat16", "conv2d matmul bias", "softmax layer_norm", "relu gelu add"),
    ],
)
def test_op_lists_are_those_of_the_framework(name: str, low: str, fp32: str, promote: str) -> None:
    policy = preset(name, LAYERS)
    for place, ops in (("low", low), ("fp32", fp32), ("promote", promote)):
        for op in ops.split():
            assert placement(policy, op) == [place], op


AUTOCAST: dict[Placement, str] = {
    "low": "conv2d conv3d conv_transpose2d conv_transpose3d matmul prelu bias=linear",
    "fp32": "exp expm1 log log2 log10 log1p logsumexp rsqrt tan pow power=pow power_of_number=pow "
    "softplus softmax log_softmax layer_norm sum prod cumprod cumsum "
    "vector_norm=linalg_vector_norm interpolate=upsample_bilinear2d "
    "binary_cross_entropy_with_logits squared_error=mse_loss absolute_error=l1_loss "
    "huber=huber_loss smooth_absolute_error=smooth_l1_loss soft_margin=soft_margin_loss "
    "kl_divergence=kl_div poisson=poisson_nll_loss negative_log_likelihood=nll_loss "
    "hinge_embedding=hinge_embedding_loss cosine_embedding=cosine_embedding_loss "
    "multi_margin=multi_margin_loss",
    "promote": "index_put addcmul addcdiv",
}
"""Lists of torch 2.13, `ATen/autocast_mode.h`: our ops, and torch's names where those differ."""

UNLISTED = (
    "relu tanh sigmoid gelu silu mish elu hardtanh leaky_relu hardswish hardsigmoid log_sigmoid "
    "glu sqrt sin cos erf abs clamp maximum minimum round add subtract=sub multiply=mul divide=div "
    "mean var std max min where masked_fill dropout embedding batch_norm concatenate=cat slice "
    "reshape transpose gather index flip pad fold unfold average_pool=avg_pool2d "
    "max_pool=max_pool2d lerp"
)
"""Ops in none of those lists: they run in the format that they are given, the widest of several."""


def pairs(ops: str) -> dict[str, str]:
    """Return torch's name by ours."""
    return {ours: torchs or ours for ours, _, torchs in (op.partition("=") for op in ops.split())}


@pytest.mark.parametrize("name", ["torch.autocast.float16", "torch.autocast.bfloat16"])
def test_autocast_places_ops_as_torch_does(name: str) -> None:
    policy = preset(name, LAYERS)
    expected = {op: place for place, ops in AUTOCAST.items() for op in pairs(ops)}
    expected |= dict.fromkeys(pairs(UNLISTED), "promote")
    assert {op: placement(policy, op) for op in expected} == {o: [p] for o, p in expected.items()}


@pytest.mark.torch
def test_the_lists_of_autocast_are_those_of_the_header_of_torch() -> None:
    torch = pytest.importorskip("torch")
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    found = re.findall(
        r"#define AT_FORALL_(LOWER_PRECISION_FP|FP32\w*|PROMOTE)\(_\)((?:.*\\\n)*.*)",
        header.read_text(encoding="utf-8"),
    )
    listed: dict[str, set[str]] = {"low": set(), "fp32": set(), "promote": set()}
    for macro, body in found:
        place = "low" if macro[0] == "L" else macro[:4].lower() if macro[0] == "F" else "promote"
        listed[place] |= set(re.findall(r"_\((\w+)", body))
    for place, ops in AUTOCAST.items():
        assert set(pairs(ops).values()) <= listed[place]
    assert not set(pairs(UNLISTED).values()) & set().union(*listed.values())


@pytest.mark.parametrize(
    ("name", "kind", "init_scale", "min_scale", "max_scale", "rule"),
    [
        ("mindspore.O1", "none", 1.0, None, None, "torch.GradScaler"),
        ("mindspore.O2", "dynamic", 2**24, 1.0, None, "mindspore.DynamicLossScaleManager"),
        ("mindspore.O3", "none", 1.0, None, None, "torch.GradScaler"),
        ("mindspore.O2.fixed128", "fixed", 128, None, None, "mindspore.FixedLossScaleManager"),
        ("apex.O1", "dynamic", 2**16, None, 2**24, "apex"),
        ("apex.O2", "dynamic", 2**16, None, 2**24, "apex"),
        ("apex.O3", "none", 1.0, None, None, "torch.GradScaler"),
        ("torch.autocast.float16", "dynamic", 2**16, None, None, "torch.GradScaler"),
        ("torch.autocast.bfloat16", "none", 1.0, None, None, "torch.GradScaler"),
    ],
)
def test_loss_scales_are_the_defaults_of_the_framework(
    name: str,
    kind: str,
    init_scale: float,
    min_scale: float | None,
    max_scale: float | None,
    rule: str,
) -> None:
    scale = preset(name, LAYERS).loss_scale
    assert (scale.kind, scale.init_scale, scale.rule) == (kind, init_scale, rule)
    assert (scale.min_scale, scale.max_scale) == (min_scale, max_scale)
    assert (scale.growth_factor, scale.backoff_factor, scale.growth_interval) == (2.0, 0.5, 2000)


def test_levels_of_the_same_name_differ() -> None:
    for level in ("O1", "O2", "O3"):
        ours, theirs = (preset(f"{who}.{level}", LAYERS) for who in ("mindspore", "apex"))
        assert ours.digest != theirs.digest
    assert preset("mindspore.O3", LAYERS).master_weights
    assert not preset("apex.O3", LAYERS).master_weights
    assert preset("mindspore.O2", LAYERS).layer("fc1").param == "float32"
    assert preset("apex.O2", LAYERS).layer("fc1").param == "float16"


def test_levels_without_low_precision_are_one_policy() -> None:
    digests = {preset(f"{name}", LAYERS).digest for name in ("float32", "mindspore.O0", "apex.O0")}
    assert len(digests) == 1


def test_manual_precision_works_on_any_level() -> None:
    """An op follows its layer, so one layer can be set on top of O0 as well as of O3."""
    half = preset("mindspore.O3", LAYERS).layer("fc1")
    policy = preset("mindspore.O0", LAYERS).with_layers({"fc1": half})
    assert placement(policy, "matmul") == ["low"]
    inner = preset("mindspore.O3", LAYERS).with_layers({"fc1": LayerPolicy()})
    assert inner.layer("fc1").compute == "float32" and inner.layer("conv1").compute == "float16"


FALLBACKS = ("O2.fixed128", "O1.fixed128", "O1.dynamic")


def test_the_fallbacks_are_their_level_with_another_loss_scale() -> None:
    rungs = [preset(f"mindspore.{name}", LAYERS) for name in FALLBACKS]
    assert [rung.loss_scale.kind for rung in rungs] == ["fixed", "fixed", "dynamic"]
    assert [rung.loss_scale.init_scale for rung in rungs[:2]] == [128.0, 128.0]
    for rung, level in zip(rungs, ("O2", "O1", "O1"), strict=True):
        base = preset(f"mindspore.{level}", LAYERS)
        plain = dataclasses.replace(rung, name=base.name, loss_scale=base.loss_scale)
        assert plain == base


def test_uniform_formats_widen() -> None:
    widths = []
    rungs = [preset(name, LAYERS) for name in ("float8", "float16", "bfloat16", "float32")]
    for policy in rungs:
        (compute,) = {format_named(layer.compute) for _, layer in policy.layers}
        widths.append(compute.bits)
    assert widths == sorted(widths) and len({p.digest for p in rungs}) == 4


def test_float8_keeps_only_products_in_eight_bits() -> None:
    policy = preset("float8", LAYERS)
    layer = policy.layer("fc1")
    assert (layer.compute, layer.grad) == ("float8_e4m3fn", "float8_e5m2")
    assert (layer.output, layer.wgrad, layer.dgrad) == ("bfloat16",) * 3
    products = {"matmul", "conv2d", "conv_transpose2d", "conv3d", "conv_transpose3d"}
    assert set(policy.low_precision_ops) == {*products, "bias", "prelu"}  # as autocast has it
    assert policy.scaling.recipe == "current"


@pytest.mark.parametrize("name", PRESETS)
def test_low_formats_below_float32_have_a_scale_that_fits(name: str) -> None:
    """A fixed or first scale must be a float32 power of two that the rule can halve."""
    scale = preset(name, LAYERS).loss_scale
    state = initial_state(scale)
    assert math.log2(state.scale).is_integer()
    for step in range(RULES[scale.rule].hysteresis):
        before, state = state, next_state(scale, state, False, step)
    lower, state = state.scale, before
    assert lower == (state.scale / 2 if scale.kind == "dynamic" else state.scale)


@pytest.mark.parametrize("name", PRESETS)
def test_every_loss_is_in_float32(name: str) -> None:
    made = preset(name, LAYERS)
    assert {"huber", "ctc_loss", "kl_divergence", "token_cross_entropy"} < set(LOSS_OPS)
    assert all(placement(made, op) == ["fp32"] for op in LOSS_OPS)


def test_an_op_no_row_knows_joins_the_list_it_is_given() -> None:
    policy = preset("apex.O1", LAYERS, {"my_op": "promote", "relu": "fp32"})
    assert placement(policy, "my_op") == ["promote"]
    assert placement(policy, "relu") == ["promote"]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("place", ["low", "fp32", "promote"])
def test_a_new_op_is_where_its_definition_puts_it(
    monkeypatch: pytest.MonkeyPatch, name: str, place: Placement
) -> None:
    swish = Op("swish", lambda inputs, attrs: inputs[0], relu.forward, placement=place)
    monkeypatch.setattr(preset_row, "OPS", {**OPS, "swish": swish})
    monkeypatch.setattr(presets, "FORWARD_OPS", (*FORWARD_OPS, "swish"))
    assert placement(preset(name, LAYERS), "swish") == [place]


def test_an_unknown_preset_names_the_valid_ones() -> None:
    with pytest.raises(InputError, match=r"^preset: 'O2'; expected one of float32, mindspore.O0"):
        preset("O2", LAYERS)


def test_every_preset_format_is_known() -> None:
    for row in PRESETS.values():
        for name in ("compute", "output", "grad", "wgrad", "param"):
            assert format_named(getattr(row.layer, name)).bits <= 32
