"""Known pitfalls of trainers' files that no other file tests: each is one line, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policysearch.export.targets import target_named
from policysearch.nn.models import gpt, mlp
from policysearch.policy.presets import preset
from policysearch.values import InputError

NETS = {"gpt": gpt((8,), 10, 16, (32,) * 4, 2), "mlp": mlp((60, 32, 10))}


MX = "fp8_quantization_recipe: mxfp8"


def megatron(flags: str, pattern: str = "*.mlp.*", recipe: str = MX) -> str:
    kind = "transformer_engine_config_type: TEQuantizationParams"
    return (
        f"# flags: --bf16 {flags}\nconfigs:\n  low: {{{kind}, training_recipe: {{{recipe}}}}}\n"
        f"matchers:\n  mine: {{config: low, type: glob, pattern: '{pattern}', enabled: true}}\n"
    )


def debug(layers: str) -> str:
    on = "transformer_engine: {DisableQuantizationLayer: {enabled: true}}"
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
    traps = target_named(target).read(text, NETS[net], "file").traps
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


ERRORS: list[tuple[str, Any, str]] = [
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
        target_named(target).read(json.dumps(data), NETS["mlp"], "file")
    assert said in str(caught.value) and "\n" not in str(caught.value)
