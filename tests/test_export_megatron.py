"""Megatron-LM's file: read by megatron-core's own parser, its pitfalls, and layers on stages."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policysearch.export import megatron, transformer_engine
from policysearch.export.levels import field_losses
from policysearch.export.megatron_file import FACTORIES
from policysearch.export.megatron_names import places, sides_there
from policysearch.export.targets import files_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.nn.models import gpt
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import in_full, normal
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import layer_named, preset
from policysearch.policy.product_words import with_words
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError
from tests import test_export_transformer_engine as te

stubs = te.stubs  # the fixture

MODEL = gpt((8,), 32, 32, (64,) * 12, 2)
WHERE = places(MODEL)
LEVELS = ("bfloat16", "float8_e4m3fn")


def policy_of(levels: dict[str, str]) -> Policy:
    """A policy of bfloat16 but for these layers, scaled as TE's current recipe has it."""
    base = preset("bfloat16", MODEL.layer_names)
    made = base.with_layers({name: uniform_layer(level) for name, level in levels.items()})
    return replace(made, scaling=Scaling("current"))


def ends() -> Policy:
    """FP8 in all linears but those of block 0 and of the last two of 12."""
    return policy_of(
        {name: LEVELS[1] for name, place in WHERE.items() if place.block not in (0, 10, 11)}
    )


def test_ends_go_by_flags_and_not_by_numbers_of_a_stage() -> None:
    text = megatron.export(ends(), MODEL)
    assert "--num-layers-at-start-in-bf16 1 --num-layers-at-end-in-bf16 2" in text
    assert "layers.0" not in text.partition("matchers:")[2]
    assert len(WHERE) == 12 * 6 and WHERE["block3.attention.k"].name == (
        "decoder.layers.2.self_attention.linear_qkv"
    )


def given_on_stages(text: str, tmp_path: Path, stages: int) -> dict[str, str]:
    """Return the dtype of each linear as megatron-core's parser matches it, stage by stage."""
    yaml = pytest.importorskip("yaml")
    config = pytest.importorskip("megatron.core.quantization.quant_config")
    path = tmp_path / "te.yaml"
    path.write_text(text)
    recipe = config.RecipeConfig.from_yaml_file(str(path))
    flags = megatron.export.__globals__["read"].__globals__["_flags"](text)
    first = int(flags.get("--num-layers-at-start-in-bf16", 0))
    last = int(flags.get("--num-layers-at-end-in-bf16", 0))
    data = yaml.safe_load(text)
    found, per_stage = {}, 12 // stages
    for layer, place in WHERE.items():
        local = f"decoder.layers.{place.block % per_stage}.{place.module}"
        matched = recipe.match(config.MatchContext(local, place.block % per_stage))
        training = matched.config["training_recipe"]
        assert matched.config == data["configs"][matched.config_key]
        wide = place.block < first or place.block >= 12 - last or not training
        found[layer] = "bfloat16" if wide else LEVELS[1]
    return found


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_no_linear_is_wrong_on_any_stage(stages: int, tmp_path: Path) -> None:
    policy = ends()
    found = given_on_stages(megatron.export(policy, MODEL), tmp_path, stages)
    assert {name: policy.layer(name).compute for name in WHERE} == found


def test_drawn_policies_are_what_the_parser_of_megatron_reads(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(20):
        levels = {name: rng.choice(LEVELS) for name in WHERE}
        running = megatron.runs(policy_of(levels), MODEL)
        found = given_on_stages(megatron.export(running, MODEL), tmp_path, 1)
        assert {name: running.layer(name).compute for name in WHERE} == found


def test_the_widest_part_of_a_fused_linear_wins_and_is_said() -> None:
    policy = policy_of({name: LEVELS[1] for name in WHERE if name != "block5.attention.v"})
    running = megatron.runs(policy, MODEL)
    for part in "qkv":
        assert running.layer(f"block5.attention.{part}").compute == "bfloat16"
    assert running.layer("block5.attention.o").compute == LEVELS[1]
    lines = megatron.losses(policy, MODEL)
    said = "(one linear there with block5.attention.k, block5.attention.v, of which the widest"
    found = [line for line in lines if line.startswith("layer block5.attention.q: ")]
    assert said in found[0] and "; it runs with compute bfloat16" in found[0]
    assert not any("block4" in line for line in lines)


def file_of(matcher: str = "", recipe: str = "fp8_quantization_recipe: mxfp8") -> str:
    return f"""configs:
  low:
    transformer_engine_config_type: TEQuantizationParams
    training_recipe: {{{recipe}}}
  bf16:
    transformer_engine_config_type: TEQuantizationParams
    training_recipe: {{}}
matchers:
{matcher}  rest:
    config: low
    type: glob
    pattern: "*"
    enabled: true
"""


def matcher(pattern: str, more: str = "\n    enabled: true", config: str = "bf16") -> str:
    return f'  mine:\n    config: {config}\n    type: glob\n    pattern: "{pattern}"{more}\n'


@pytest.mark.parametrize(
    ("text", "trap"),
    [
        (file_of(matcher("*.mlp.*", "")), "mine: dropped without a word"),
        (file_of(matcher("*layers.1*")), "takes every number that begins so"),
        (file_of(matcher("decoder.layers.3.*")), "numbers are local to the stage"),
        (file_of(matcher("*layers.[0-1].*")), "numbers are local to the stage"),
        (file_of(matcher("*.mlp.experts.linear_fc1")), "takes grouped experts, none of"),
        (file_of(matcher("*.mlp.*") * 2), "mine: two matchers of this name"),
        (file_of(recipe="fp8_quantization_recipe: mxfp8, fp8_param: true"), "fp8_param is refused"),
        (file_of(), "in the head: what no matcher takes"),
        (
            file_of(recipe="fp8_quantization_recipe: mxfp8, override_nonquantized_autocast: true"),
            "quantises first and last blocks too",
        ),
    ],
)
def test_pitfalls_are_one_line(text: str, trap: str) -> None:
    reading = megatron.read(text, MODEL, "te.yaml")
    assert sum(trap in line for line in reading.traps) == 1
    sound = "# flags: --bf16 --fp8-format e4m3\n" + file_of(matcher("*.mlp.linear_fc2"))
    assert not megatron.read(sound, MODEL, "te.yaml").traps


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (file_of(matcher("*", config="none")), r"matchers\.mine: config: 'none'; expected one of"),
        (file_of(recipe="fp8_quantization_recipe: mxfp9"), "fp8_quantization_recipe: 'mxfp9'"),
        (file_of(recipe="fp8_quantization_recipe: delayed"), "fp8_quantization_recipe: 'delayed'"),
        (
            file_of(recipe="fp8_quantization_recipe: mxfp8, fp8_format: hybridd"),
            "fp8_format: 'hybridd'; expected one of e4m3, hybrid",
        ),
        (file_of(recipe="fp8_quantisation: mxfp8"), "key: 'fp8_quantisation'; expected one of"),
        (
            file_of(recipe="fp8_quantization_recipe: mxfp8, fp4_quantization_recipe: nvfp4"),
            "fp8 and fp4 recipes; expected one of them",
        ),
        ("configs: 1", "no table 'configs'"),
    ],
)
def test_mistakes_that_megatron_finds_late_or_never_are_errors(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        megatron.read(text, MODEL, "te.yaml")


def test_first_match_wins_and_shadowed_rules_are_named() -> None:
    rules = matcher("*.self_attention.*") + matcher("*.linear_qkv").replace("mine", "late")
    reading = megatron.read(file_of(rules), MODEL, "te.yaml")
    computed: dict[str, Any] = {row.layer: (row.rule, row.formats) for row in reading.given}
    assert computed["block2.attention.q"][0] == "mine"
    assert computed["block2.fc1"][0] == "rest"
    assert format_named(computed["block2.fc1"][1].compute).bits == 8
    assert reading.unused == ("late: shadowed: earlier rules take all 36 it matches",)
    assert reading.policy.scaling == Scaling("mx_rceil")
    nothing = matcher("*.router").replace("mine", "none")
    assert megatron.read(megatron.export(ends(), MODEL), MODEL, "x").unused == ()
    assert "none: never matches" in megatron.read(file_of(nothing), MODEL, "x").unused


SMALL, TWO = (gpt((8,), 32, 32, (64,) * blocks, 2) for blocks in (8, 2))
ROWS = [layer_named(name) for name in te.OWN]


def dealt(seed: int, stages: int = 1, net: Model = SMALL) -> Policy:
    """Formats per product for every module there, the same at each place of every stage."""
    rng, base = random.Random(seed), preset("te.current", net.layer_names)
    cards: dict[tuple[int, str], Any] = {}
    layers = {}
    for name, place in places(net).items():
        key = place.block % (place.blocks // stages), place.module
        card = cards.setdefault(key, with_words(rng.choice(ROWS), rng.choice(te.WORDS)))
        layers[name] = card
    return base.with_layers(layers, "dealt")


def check_stages(policy: Policy, stages: int, tmp_path: Path, net: Model = SMALL) -> int:
    """Ask the parser of Megatron and stub quantizers for every role of every linear."""
    config = pytest.importorskip("megatron.core.quantization.quant_config")
    running, path = megatron.runs(policy, net), tmp_path / "te.yaml"
    path.write_text(megatron.export(policy, net, pipeline=stages))
    recipe, space, checked = config.RecipeConfig.from_yaml_file(str(path)), {"__name__": "f"}, 0
    exec(compile(megatron.ABOUT.beside(policy, net)[f"{FACTORIES}.py"], "f.py", "exec"), space)
    ends = [int(x) for x in re.findall(r"--num-layers-at-\w+-in-bf16 (\d+)", path.read_text())]
    first, last = ends or (0, 0)
    for layer, place in places(net).items():
        local = place.on_stage(stages)
        said = recipe.match(config.MatchContext(local, None)).config["training_recipe"]
        if place.block < first or place.block >= place.blocks - last:
            said = {}  # by a flag that counts over the whole net
        factory: Any = space["identity"]
        if said:
            assert said["fp8_quantization_recipe"] == "custom"
            factory = space[said["custom_recipe_factory"].removeprefix(f"{FACTORIES}.")]
        asked = in_full(running, layer)
        for tensor in ("input", "weight", "grad_output"):
            made = factory(te.Role("linear", tensor)) if said else factory()
            rows = zip(transformer_engine.READS[tensor], ("rowwise", "columnwise"), strict=True)
            for (role, where), direction in rows:
                operand = getattr(asked[role], where)
                te.check(
                    operand, te.representation(made, direction), tensor, direction != "rowwise"
                )
                checked += 1
    return checked


def test_every_product_of_100_policies_is_what_megatron_asks_for(tmp_path: Path) -> None:
    for seed in range(100):
        policy = dealt(seed, net=TWO)
        assert check_stages(policy, 1, tmp_path, TWO) == len(places(TWO)) * 6
        lost = {line.split()[1].rstrip(":") for line in megatron.losses(policy, TWO)}
        assert lost.isdisjoint(places(TWO))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_no_product_is_wrong_on_any_stage(stages: int, tmp_path: Path) -> None:
    for seed in range(5):
        check_stages(dealt(seed, stages), stages, tmp_path)


def test_what_is_another_layer_on_another_stage_is_refused() -> None:
    with pytest.raises(InputError, match=r"layers\.0\.\S+ is block 0 .* block 4 .*; expected one"):
        megatron.export(dealt(0), SMALL, pipeline=2)
    with pytest.raises(InputError, match=r"^megatron: 3 stages of a pipeline, 8 blocks; expected"):
        megatron.export(dealt(0), SMALL, pipeline=3)
    with pytest.raises(InputError, match=r"a stage wide at either end \(1, 2\)$"):
        megatron.export(ends(), MODEL, pipeline=12)
    with pytest.raises(InputError, match=r"^pipeline: 2 with target 'torch'; expected 1"):
        files_of("torch", dealt(0), SMALL, "x", (), 2)


def test_factories_come_back_from_their_file() -> None:
    for seed in range(4):
        running = megatron.runs(dealt(seed, 2), SMALL)
        text = megatron.export(running, SMALL, pipeline=2)
        read = megatron.read(text, SMALL, "te.yaml")
        assert normal(read.policy).layers == running.layers and not read.traps
        assert megatron.runs(running, SMALL) == running
        alone = re.sub(rf"(?m)^# {FACTORIES}.*\n", "", text)
        assert "what its factory does is not read" in megatron.read(alone, SMALL, "x").traps[0]


BRIDGE = """fp32 fp16 bf16 params_dtype pipeline_dtype autocast_dtype autocast_enabled
    grad_reduce_in_fp32 fp8 fp8_recipe first_last_layers_bf16 fp8_margin fp8_amax_history_len
    fp8_amax_compute_algo fp8_wgrad fp8_dot_product_attention fp8_multi_head_attention fp8_param
    fp8_param_gather fp4 fp4_recipe fp4_param fp4_param_gather loss_scale initial_loss_scale
    min_loss_scale loss_scale_window hysteresis num_layers_at_start_in_bf16
    num_layers_at_end_in_bf16 reuse_grad_buf_for_mxfp8_param_ag"""
"""The fields of MixedPrecisionConfig in Megatron-Bridge at 05097809."""


def bridge_settings(text: str) -> dict[str, Any]:
    """Return what the line for Megatron-Bridge gives its MixedPrecisionConfig."""
    line = next(x for x in text.splitlines() if "MixedPrecisionConfig(" in x)
    kinds = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    torch = type("torch", (), kinds)
    made = eval(line.partition(" = ")[2], {"MixedPrecisionConfig": dict, "torch": torch})
    assert made.keys() <= {*BRIDGE.split()}
    return made  # type: ignore[no-any-return]


def test_settings_of_megatron_bridge_are_those_of_the_flags() -> None:
    made = bridge_settings(megatron.export(ends(), MODEL))
    assert made["bf16"] is True and made["params_dtype"] == "bf16"
    flags = megatron.export.__globals__["flags_of"](megatron.runs(ends(), MODEL), MODEL)
    said = " ".join(flags)
    assert f"--fp8-format {made['fp8']} --fp8-recipe {made['fp8_recipe']}" in said
    assert f"--num-layers-at-start-in-bf16 {made['num_layers_at_start_in_bf16']}" in said
    assert made["first_last_layers_bf16"] is True
    half = replace(preset("float16", MODEL.layer_names), all_reduce="bfloat16")
    half = replace(half, optimizer_state="bfloat16", loss_scale=LossScale("dynamic", 2.0**10))
    text = megatron.export(half, MODEL)
    made = bridge_settings(text)
    assert made["fp16"] is True and made["grad_reduce_in_fp32"] is False
    assert made["initial_loss_scale"] == 2.0**10 and made["hysteresis"] == 1
    assert "OptimizerConfig(..., use_precision_aware_optimizer=True, exp_avg_dtype=torch.bf" in text


NEMO = """precision params_dtype pipeline_dtype autocast_dtype autocast_enabled grad_reduce_in_fp32
    fp8 fp8_recipe first_last_layers_bf16 fp8_margin fp8_amax_history_len fp8_amax_compute_algo
    fp8_wgrad fp8_dot_product_attention fp8_multi_head_attention fp8_params fp8_param_gather
    fp16_loss_scale fp16_initial_loss_scale fp16_min_loss_scale fp16_loss_scale_window
    fp16_hysteresis num_layers_at_start_in_bf16 num_layers_at_end_in_bf16"""
"""What MegatronMixedPrecision of NeMo 2 takes (nemo/lightning/pytorch/plugins, read 2026-11)."""


def test_settings_of_nemo_are_those_of_megatron_bridge() -> None:
    half = replace(preset("float16", MODEL.layer_names), loss_scale=LossScale("fixed", 2.0**10))
    for policy in (ends(), half, preset("bfloat16", MODEL.layer_names)):
        text = megatron.export(policy, MODEL)
        line = next(x for x in text.splitlines() if "MegatronMixedPrecision(" in x)
        torch = type("torch", (), {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"})
        made = eval(line.partition(" = ")[2], {"MegatronMixedPrecision": dict, "torch": torch})
        other = bridge_settings(text)
        assert made.keys() <= {*NEMO.split()}
        kind = {"bf16-mixed": "bf16", "16-mixed": "fp16", "32": "fp32"}[made.pop("precision")]
        assert other.pop(kind) is True
        assert made.pop("fp8_param_gather", False) is False
        assert {name.removeprefix("fp16_"): x for name, x in made.items()} == other
    low = megatron.export(preset("te.nvfp4", MODEL.layer_names), MODEL)
    assert "NeMo 2: its plugin has no fp4" in low and "fp4_recipe='nvfp4'" in low


NAMES = {
    "transformer.h.{}.attn.c_attn": "self_attention.linear_qkv",  # nanoGPT, GPT-2
    "transformer.h.{}.attn.c_proj": "self_attention.linear_proj",
    "transformer.h.{}.mlp.c_fc": "mlp.linear_fc1",
    "transformer.h.{}.mlp.c_proj": "mlp.linear_fc2",
    "model.layers.{}.self_attn.k_proj": "self_attention.linear_qkv",  # Llama, Qwen
    "model.layers.{}.self_attn.o_proj": "self_attention.linear_proj",
    "model.layers.{}.mlp.up_proj": "mlp.linear_fc1",
    "model.layers.{}.mlp.down_proj": "mlp.linear_fc2",
    "gpt_neox.layers.{}.attention.query_key_value": "self_attention.linear_qkv",
    "gpt_neox.layers.{}.attention.dense": "self_attention.linear_proj",
    "gpt_neox.layers.{}.mlp.dense_h_to_4h": "mlp.linear_fc1",
    "gpt_neox.layers.{}.mlp.dense_4h_to_h": "mlp.linear_fc2",
    "bert.encoder.layer.{}.attention.self.value": "self_attention.linear_qkv",
    "bert.encoder.layer.{}.attention.output.dense": "self_attention.linear_proj",
    "bert.encoder.layer.{}.intermediate.dense": "mlp.linear_fc1",
    "bert.encoder.layer.{}.output.dense": "mlp.linear_fc2",
    "blocks.{}.mlp.0": "mlp.linear_fc1",  # minGPT, a Sequential
    "blocks.{}.mlp.2": "mlp.linear_fc2",
    "model.layers.{}.mlp.experts.3.gate_proj": "mlp.experts.linear_fc1",  # DeepSeek, Qwen
    "model.layers.{}.block_sparse_moe.experts.7.w2": "mlp.experts.linear_fc2",  # Mixtral
    "model.layers.{}.mlp.shared_experts.down_proj": "mlp.shared_experts.linear_fc2",
    "model.layers.{}.mlp.shared_expert.up_proj": "mlp.shared_experts.linear_fc1",
    "model.layers.{}.self_attn.kv_b_proj": "self_attention.linear_kv_up_proj",
    "model.layers.{}.self_attn.q_a_proj": "self_attention.linear_q_down_proj",
    "backbone.layers.{}.mixer.in_proj": "mixer.in_proj",  # Mamba
    "blocks.{}.router": "",
}
"""What linears are called in public models, and what Megatron-LM calls them."""


@pytest.mark.parametrize("name", NAMES)
def test_linears_are_found_by_what_public_models_call_them(name: str) -> None:
    names = [name.format(0), name.format(1)]
    model: Any = SimpleNamespace(layer_names=names, layer_types=dict.fromkeys(names, "Linear"))
    found = [place.module for place in places(model).values()]
    assert found == [NAMES[name]] * 2 if NAMES[name] else not found


def test_linears_of_sides_that_are_refused_stay_wide_and_are_said() -> None:
    fits, other = (gpt((8,), 10, 16, (hidden,) * 2, 2) for hidden in (32, 24))
    policy = preset("te.current", fits.layer_names)
    text = megatron.export(policy, fits)
    assert not megatron.read(text, fits, "te.yaml").traps
    running, wide = (
        megatron.runs(policy, other),
        {f"block{n}.fc{m}" for n in (1, 2) for m in (1, 2)},
    )
    low = {n for n, row in running.layers if format_named(row.compute).bits == 8}
    assert low == {*places(other)} - wide
    lost = [x for x in megatron.losses(policy, other) if "(Transformer Engine wants" in x]
    assert {x.split()[1].rstrip(":") for x in lost} == wide
    assert "multiples of 16 x 16, and its weight is 24 x 16" in lost[0]
    assert "multiples of 8 x 16, and its weight is 16 x 24" not in lost[1]
    assert not megatron.read(megatron.export(policy, other), other, "te.yaml").traps
    traps = megatron.read(text, other, "te.yaml").traps
    assert {x.partition(":")[0] for x in traps} == wide and "raises" in traps[0]


def test_sides_are_those_of_what_is_one_linear_there() -> None:
    """Gate and up of 24 are one linear of 48; of experts each has its own."""
    rows = {"self_attn.q_proj": (32, 64), "self_attn.k_proj": (8, 64), "self_attn.v_proj": (8, 64)}
    experts = {f"mlp.experts.{n}.{x}": (24, 64) for n in (0, 1) for x in ("gate_proj", "up_proj")}
    shapes = {f"model.layers.{n}.{x}": y for n in (0, 1) for x, y in (rows | experts).items()}
    model: Any = SimpleNamespace(
        layer_names=[*shapes],
        layer_types=dict.fromkeys(shapes, "Linear"),
        parameters_of=lambda name: [SimpleNamespace(shape=shapes[name])],
    )
    assert {*sides_there(model).items()} == {(name, (48, 64)) for name in shapes}
    gpt2 = {"h.0.attn.c_attn": "Conv1D", "h.1.attn.c_attn": "Conv1D"}
    turned: Any = SimpleNamespace(
        layer_names=[*gpt2],
        layer_types=gpt2,
        parameters_of=lambda name: [SimpleNamespace(shape=(64, 192))],
    )
    assert {*sides_there(turned).values()} == {(192, 64)}


def test_a_layer_that_runs_wider_says_so_of_its_narrowest_operand() -> None:
    """bfloat16 comes first by name, and is not what the target refuses."""
    asked = preset("bfloat16", ("fc1",))
    row = replace(asked.layer("fc1"), compute="float8_e4m3fn")
    (line,) = field_losses(asked.with_layers({"fc1": row}), asked, "it", lambda layer: "no unit")
    assert line == (
        "layer fc1: it does not compute it in float8_e4m3fn (no unit); it runs with compute "
        "bfloat16, not float8_e4m3fn"
    )
