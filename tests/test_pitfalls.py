"""Known pitfalls of trainers' files that no other file tests: each is one line, or an error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from policysearch.export.targets import read_file, target_named
from policysearch.nn.models import gpt, mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.values import InputError

NETS = {"gpt": gpt((8,), 10, 16, (32,) * 4, 2), "mlp": mlp((60, 32, 10))}


MX = "fp8_quantization_recipe: mxfp8"


KIND = "transformer_engine_config_type: TEQuantizationParams"


def megatron(flags: str, pattern: str = "*.mlp.*", recipe: str = MX, more: str = "") -> str:
    dtype = "" if "--fp16" in flags else "--bf16"
    return (
        f"# flags: {dtype} {flags}\nconfigs:\n"
        f"  low: {{{KIND}, training_recipe: {{{recipe}}}{more}}}\n"
        f"matchers:\n  mine: {{config: low, type: glob, pattern: '{pattern}', enabled: true}}\n"
    )


def debug(layers: str, feature: str = "DisableQuantizationLayer: {enabled: true}") -> str:
    on = f"transformer_engine: {{{feature}}}"
    return f"# recipe: MXFP8BlockScaling()\na: {{enabled: true, layers: {{{layers}}}, {on}}}\n"


def titan(name: str, said: str) -> str:
    return f"converters = [{name}.Config({said})]\n"


def edited(target: str, net: str, *pairs: tuple[str, str], base: str = "float16") -> str:
    """Return an exported file with some of its text replaced."""
    text = target_named(target).export(preset(base, NETS[net].layer_names), NETS[net])
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


FP8 = "--fp8-format e4m3 --fp8-recipe mxfp8"
RULE = 'qwix.QtRule(module_path="{}", weight_qtype="float8_e4m3fn", act_qtype="float8_e4m3fn")\n'
TRAPS = [
    ("megatron", "gpt", megatron(FP8, "*layers.[0-1].*"), "takes mtp.layers too; expected decoder"),
    ("megatron", "gpt", megatron(""), "mine: nothing around it is quantised"),
    (
        "megatron",
        "gpt",
        megatron("--fp8-format hybrid --first-last-layers-bf16"),
        "--first-last-layers-bf16: refused with --fp8-recipe delayed",
    ),
    ("megatron", "gpt", megatron(FP8, recipe="fp4_param: true"), "fp4_param is refused"),
    (
        "megatron",
        "gpt",
        megatron(FP8, more=", evaluation_recipe: {}"),
        "low: validation runs by its evaluation_recipe",
    ),
    (
        "megatron",
        "gpt",
        megatron(f"{FP8} --fp8-param-gather", recipe=""),
        "--fp8-param-gather: block1.fc1 is stored quantised",
    ),
    ("megatron", "gpt", megatron("--fp16", "*.none"), "--hysteresis: 2 overflows lower the scale"),
    ("te_debug", "gpt", debug("layer_name_regex_pattern: block1"), "every number that begins so"),
    (
        "te_debug",
        "gpt",
        debug("layer_types: [fc1], layer_name_pattern: x"),
        "'layer_name_pattern' is ignored there without a word",
    ),
    (
        "torchtitan",
        "gpt",
        titan("Float8LinearConverter", "filter_fqns=['layers.1']"),
        "'layers.1' takes every number that begins so",
    ),
    ("torchtitan", "gpt", titan("Float8LinearConverter", "emulate=True"), "drops the recipe"),
    ("torchtitan", "gpt", titan("MXFP8LinearConverter", "fqns=[]"), "takes every linear"),
    (
        "torchtitan",
        "gpt",
        titan("MXFP8LinearConverter", "fqns=['head', 'block1.fc1']"),
        "head: 10 x 16, no multiples of 32",
    ),
    (
        "torchtitan",
        "gpt",
        titan("Float8LinearConverter", "recipe_name='tensorwise'"),
        "tensorwise is gone in torchtitan 0.3.0",
    ),
    *(
        (
            target,
            "mlp",
            f"{call}=filter_first_and_last_linear_layers)",
            "looks for them inside each linear: it leaves none out",
        )
        for target in ("torch", "torchao")
        for call in (
            "AORecipeKwargs(module_filter_func",
            "convert_to_float8_training(net, module_filter_fn",
        )
    ),
    ("torchao", "mlp", "AORecipeKwargs(config=Float8LinearConfig())", "no pad_inner_dim=True"),
    ("torchao", "mlp", edited("torchao", "mlp", ("'fc1': 'bfloat16'", "'fc1': 'float8'")),
     "fc1: sizes that are no multiples of 16"),
    ("deepspeed", "mlp", json.dumps({"fp_16": {"enabled": True}}), "fp_16: unknown to DeepSpeed"),
    (
        "deepspeed",
        "mlp",
        json.dumps({"fp16": {"enabled": True}, "torch_autocast": {"enabled": True}}),
        "torch_autocast beside fp16: DeepSpeed accepts both",
    ),
    (
        "deepspeed",
        "mlp",
        json.dumps({"fp16": {"enabled": True}}),
        "min_loss_scale: an overflow at it raises there",
    ),
    (
        "cann",
        "mlp",
        json.dumps({"white-list": {"to-remove": ["SoftmaxV2"]}}),
        "SoftmaxV2: white-list, to-remove: refused where the type is not on that list",
    ),
    *(
        (
            target,
            "mlp",
            edited(target, "mlp", ("'kind': 'dynamic'", "'kind': 'none'")),
            "fc1: float16 (3 such layers) and no loss scale",
        )
        for target in ("keras", "flax", "mindspore", "fsdp2")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("target", "net", "text", "said"), TRAPS)
def test_a_pitfall_is_one_line(target: str, net: str, text: str, said: str) -> None:
    traps = read_file(target, text, NETS[net], "file").traps
    assert sum(said in line for line in traps) == 1, traps


UNUSED: list[tuple[str, str, str, str]] = [
    ("te_debug", "gpt", debug("layer_types: [attn]"), "a: never matches"),
    (
        "torchtitan",
        "gpt",
        titan("Float8LinearConverter", "filter_fqns=['outputt']"),
        "'outputt': never matches",
    ),
    ("qwix", "gpt", RULE.format(".*fc1") + RULE.format("block2/fc1"), "shadowed: earlier rules"),
    ("qwix", "gpt", RULE.format("fc1"), "rule 0 (fc1): never matches"),
    *(
        (x, "mlp", edited(x, "mlp", ("'fc2': ", "'fc9': ")), "fc9: never matches")
        for x in ("keras", "flax", "mindspore", "fsdp2", "qwix", "torchao", "apex", "cann")
    ),
]


@pytest.mark.parametrize(("target", "net", "text", "said"), UNUSED)
def test_what_matches_nothing_is_named(target: str, net: str, text: str, said: str) -> None:
    unused = target_named(target).read(text, NETS[net], "file").unused
    assert sum(said in line for line in unused) == 1, unused


PER_TENSOR = "PerTensorScaling: {enabled: true, gemms: [fprop], tensors: [weight]}"
WITHOUT = megatron(FP8).replace(f", training_recipe: {{{MX}}}", "")
ERRORS: list[tuple[str, Any, str]] = [
    ("megatron", WITHOUT, "configs.low: no training_recipe; expected one"),
    (
        "megatron",
        megatron(FP8, more=", evaluation_recipe: {fp9: x}"),
        "evaluation_recipe: key: 'fp9'; expected one of",
    ),
    ("te_debug", debug("layer_types: [fc1]", PER_TENSOR), "expected DelayedScaling"),
    (
        "deepspeed",
        {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        "masters kept low without ZeRO; expected zero_optimization.stage",
    ),
    ("deepspeed", {"fp16": {"loss_scal": 0}}, "fp16: key: 'loss_scal'; expected one of"),
    ("deepspeed", {"torch_autocast": {"dtyp": 0}}, "torch_autocast: key: 'dtyp'"),
    ("deepspeed", {"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16 and bf16 are"),
    (
        "deepspeed",
        {"fp16": {"enabled": True, "initial_scale_power": 15.5}},
        "initial_scale_power: 15.5; expected a whole number",
    ),
    ("deepspeed", {"torch_autocast": {"enabled": True, "dtype": "fp8"}}, "dtype: 'fp8'; expected"),
    ("cann", {"grey-list": {"to-add": []}}, "list: 'grey-list'; expected one of"),
    ("cann", {"white-list": {"add": []}}, "white-list: 'add'; expected one of to-add"),
]


@pytest.mark.parametrize(("target", "data", "said"), ERRORS)
def test_what_is_silent_or_late_there_is_an_error(target: str, data: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"^file: ") as caught:
        text = data if isinstance(data, str) else json.dumps(data)
        target_named(target).read(text, NETS["gpt"], "file")
    assert said in str(caught.value) and "\n" not in str(caught.value)


FLAGS = ("--fp8-output-proj", "--fp8-dot-product-attention", "--main-params-dtype fp16")


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_that_change_formats_and_are_not_followed_are_said(flag: str) -> None:
    target, net = target_named("megatron"), NETS["gpt"]
    unread = target.read(megatron(f"{FP8} {flag}"), net, "file").unread
    assert len(unread) == 1 and unread[0].startswith(flag.split()[0])
    assert not target.read(megatron(f"{FP8} --main-params-dtype fp32"), net, "file").unread


def test_float16_without_a_word_of_a_scale_has_megatrons() -> None:
    """Dynamic from 2^32, so that no scale is a scale of 1."""
    target, net = target_named("megatron"), NETS["gpt"]
    there = target.read(megatron("--fp16"), net, "file").policy.loss_scale
    assert (there.kind, there.init_scale, there.growth_interval) == ("dynamic", 2.0**32, 1000)
    bare = replace(preset("float16", net.layer_names), loss_scale=LossScale())
    text = target.export(bare, net)
    assert "# flags: --fp16 --loss-scale 1.0\n" in text
    assert target.read(text, net, "file").policy.loss_scale == LossScale()
