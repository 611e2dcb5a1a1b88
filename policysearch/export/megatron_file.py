"""The YAML of `--te-precision-config-file`, written and read: matchers in order, first match wins.

Grammar as of megatron/core/quantization/quant_config.py and core/extensions/transformer_engine.py:
`fnmatch` on the whole path of a module, case-sensitive; without `enabled: true` it is dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from policysearch.export.levels import BASE
from policysearch.export.megatron_names import NOT_ADDRESSED, Place, places, settings_of
from policysearch.export.reading import (
    DEFAULT_RULE,
    Given,
    Reading,
    json_object,
    policy_of,
    unmatched,
)
from policysearch.export.transformer_engine import layer_of, tables_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import normal
from policysearch.policy.policy import AS_FIRST, LayerPolicy, Policy, uniform_layer
from policysearch.policy.products import Products
from policysearch.policy.scaling import Recipe, Scaling
from policysearch.values import InputError, one_of

CONTEXTS: tuple[Recipe, ...] = ("current", "mx_rceil", "nvfp4")
RECIPES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "current": ("fp8_quantization_recipe", "tensorwise"),
        "mx_rceil": ("fp8_quantization_recipe", "mxfp8"),
        "nvfp4": ("fp4_quantization_recipe", "nvfp4"),
    }
)
"""By the recipe of a policy, the key and the word of a training recipe."""

KEYS = (
    "fp8_quantization_recipe",
    "fp4_quantization_recipe",
    "custom_recipe_factory",
    "fp8_format",
    "override_quantized_autocast",
    "override_nonquantized_autocast",
    "tp_only_amax_red",
)
"""What a training recipe may have in megatron-core 0.16.1; its head adds two more."""

WORDED = ("fp4", "hybrid", "e4m3")
"""Levels that a recipe of Megatron-LM's own says; others are factories."""

WORDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
DTYPES = {word: name for name, word in WORDS.items()}


STAGES = "--pipeline-model-parallel-size"
"""The flag in the head that says for how many stages the names in a file are."""

FACTORIES = "te_recipes"
"""The module of factories that lies beside the file where products differ within a linear."""


def by_factories(policy: Policy, model: Model) -> bool:
    """Whether a running policy is said by factories: by linears with a recipe of their own."""
    rows = [policy.layer(layer) for layer in places(model)]
    low = [row for row in rows if format_named(row.compute).bits < 16]
    own = any(row.scaling is not None or row.products != Products() for row in rows)
    own |= any(row.backward != LayerPolicy().backward for row in low)
    return own or (
        bool(low)
        and policy.scaling not in (Scaling("current"), Scaling("mx_rceil"), Scaling("nvfp4"))
    )


def _level(formats: LayerPolicy) -> str:
    if format_named(formats.compute).bits >= 16:
        return "wide"
    if formats.compute == "float4_e2m1fn":
        return "fp4"
    return "hybrid" if formats.grad == "float8_e5m2" else "e4m3"


def _levels(policy: Policy, model: Model) -> dict[str, list[str]]:
    """Return the level of each module, block after block: a word, or the name of a factory."""
    found: dict[str, list[str]] = {}
    own = tables_of(policy)[1] if by_factories(policy, model) else None
    for layer, place in places(model).items():
        blocks = found.setdefault(place.module, ["wide"] * place.blocks)
        level = _level(policy.layer(layer)) if own is None else own.get(layer, "wide")
        blocks[place.block] = level
    return found


def _ends(levels: Mapping[str, Sequence[str]]) -> tuple[int, int]:
    """Return how many blocks at the start, and at the end, are wide throughout."""
    wide = [all(level == "wide" for level in block) for block in zip(*levels.values(), strict=True)]
    if all(wide):
        return 0, 0
    return wide.index(False), wide[::-1].index(False)


def flags_of(policy: Policy, model: Model) -> Iterator[str]:
    """Yield the flags of the run: its dtype, the recipe around it, ends, state, loss scale."""
    dtypes = {row.compute for _, row in policy.layers if format_named(row.compute).bits >= 16}
    dtype = "bfloat16" if len(dtypes) != 1 else dtypes.pop()
    if dtype != "float32":
        yield f"--{WORDS[dtype]}"
    levels = _levels(policy, model)
    kinds = {level for blocks in levels.values() for level in blocks} - {"wide"}
    if kinds:
        own = by_factories(policy, model)
        key, word = RECIPES["current" if own else policy.scaling.recipe]
        if key.startswith("fp4"):
            yield f"--fp4-format e2m1 --fp4-recipe {word}"
        else:
            shape = "hybrid" if own or "hybrid" in kinds else "e4m3"
            yield f"--fp8-format {shape} --fp8-recipe {word}"
        first, last = _ends(levels)
        if first or last:
            yield "--first-last-layers-bf16"
            yield f"--num-layers-at-start-in-bf16 {first} --num-layers-at-end-in-bf16 {last}"
    kept, squares = policy.optimizer_state, policy.second_moment
    squares = kept if squares == AS_FIRST else squares
    if {kept, squares} != {"float32"}:
        words = f"--exp-avg-dtype {WORDS[kept]} --exp-avg-sq-dtype {WORDS[squares]}"
        yield f"--use-precision-aware-optimizer {words}"
    if policy.all_reduce == "bfloat16":
        yield "--grad-reduce-in-bf16"
    yield from _scale_flags(policy.loss_scale)


def _scale_flags(scale: LossScale) -> Iterator[str]:
    if scale.kind == "fixed":
        yield f"--loss-scale {scale.init_scale!r}"
    elif scale.kind == "dynamic":
        yield f"--initial-loss-scale {scale.init_scale!r} --min-loss-scale {scale.min_scale!r}"
        yield f"--loss-scale-window {scale.growth_interval} --hysteresis 1"


def yaml_of(policy: Policy, model: Model, stages: int = 1) -> Iterator[str]:
    """Yield the lines of the file: one config per level, and ordered matchers.

    Raises InputError where a name of one of the `stages` means another layer on another.
    """
    levels = _levels(policy, model)
    kinds = sorted({level for blocks in levels.values() for level in blocks} | {"wide"})
    yield "configs:"
    for kind in kinds:
        yield f"  {kind}:"
        yield "    transformer_engine_config_type: TEQuantizationParams"
        if kind == "wide":
            yield "    training_recipe: {}"
            continue
        yield "    training_recipe:"
        if kind not in WORDED:
            yield "      fp8_quantization_recipe: custom"
            yield f"      custom_recipe_factory: {FACTORIES}.{kind}"
            continue
        key, word = RECIPES[policy.scaling.recipe]
        yield f"      {key}: {word}"
        if kind != "fp4":
            yield f"      fp8_format: {kind}"
    yield "matchers:"
    for number, (pattern, kind) in enumerate(_patterns(levels, stages), 1):
        yield f"  rule_{number}:"
        yield f"    config: {kind}"
        yield "    type: glob"
        yield f'    pattern: "{pattern}"'
        yield "    enabled: true"


def _patterns(levels: Mapping[str, Sequence[str]], stages: int) -> Iterator[tuple[str, str]]:
    """Yield the globs: blocks that differ by number, then each module of all blocks, then the rest.

    Blocks at the ends that are wide go by flags, which count over the whole net; numbers in a name
    count from the first block of a stage.
    """
    first, last = _ends(levels) if levels else (0, 0)
    for module, blocks in levels.items():
        inner = range(first, len(blocks) - last)
        usual = max(sorted({blocks[i] for i in inner}), key=[blocks[i] for i in inner].count)
        for block, level in _by_name(module, blocks, inner, stages).items():
            if level != usual:
                yield f"decoder.layers.{block}.{module}", level
        yield f"decoder.layers.*.{module}", usual
    yield "*", "wide"


def _by_name(module: str, blocks: Sequence[str], inner: range, stages: int) -> dict[int, str]:
    """Return the level of each number in a name, which is one block of every stage."""
    length = len(blocks)
    if length % stages or max(inner.start, length - inner.stop) > length // stages:
        given = f"megatron: {stages} stages of a pipeline, {length} blocks"
        ends = f"and no more than a stage wide at either end ({inner.start}, {length - inner.stop})"
        raise InputError(f"{given}; expected a divisor of the blocks, {ends}")
    found: dict[int, tuple[str, int]] = {}
    for block in inner:
        number = block % (length // stages)
        level, other = found.setdefault(number, (blocks[block], block))
        if level != blocks[block]:
            name = f"decoder.layers.{number}.{module}"
            raise InputError(
                f"megatron: {name} is block {other} ({level}) and, on another of {stages} stages, "
                f"block {block} ({blocks[block]}); expected one format, or one stage"
            )
    return {number: level for number, (level, _) in found.items()}


def read(text: str, model: Model, where: str) -> Reading:
    """Return what such a file gives the linears of `model`, by megatron-core's rules.

    Where the head has no flags as `export` writes them, what no matcher takes is bfloat16.
    """
    data, traps = _loaded(text, where)
    own = _factories(text, where)
    configs = {n: _config(n, row, where, traps, own) for n, row in data["configs"].items()}
    flags = _flags(text)
    matchers = [*_matchers(data["matchers"], configs, where, traps, STAGES in flags)]
    dtype = _dtype_of(flags, data)
    given, matched = _given(model, matchers, configs, flags, uniform_layer(dtype))
    recipes = {configs[config][0] for *_, config in matchers} - {""}
    used = any(format_named(row.formats.compute).bits < 16 for row in given)
    if len(recipes) > 1:
        traps.append(
            f"recipes {', '.join(sorted(recipes))}: one scaling is a policy's; read as one"
        )
    if "flags" not in flags:
        traps.append(
            "no flags in the head: what no matcher takes does what the run does, here bf16"
        )
    first, second = (DTYPES[flags.get(f"--{x}-dtype", "fp32")] for x in ("exp-avg", "exp-avg-sq"))
    policy = policy_of(
        given,
        model,
        f"imported from {where}",
        BASE,
        scaling=Scaling(min(recipes)) if used and recipes else Scaling(),  # type: ignore[arg-type]
        optimizer_state=first,
        second_moment=second if second != first else AS_FIRST,
        all_reduce="bfloat16" if "--grad-reduce-in-bf16" in flags else "float32",
        loss_scale=_scale_of(flags, dtype),
    )
    rules = [name for name, *_ in matchers]
    policy = normal(policy) if own else policy
    return Reading(policy, tuple(given), unmatched(rules, given, matched), tuple(traps))


def _given(
    model: Model,
    matchers: Sequence[tuple[str, str, str]],
    configs: Mapping[str, tuple[str, LayerPolicy | None]],
    flags: Mapping[str, str],
    wide: LayerPolicy,
) -> tuple[list[Given], dict[str, int]]:
    """Return what each layer gets, and how many layers each matcher fits."""
    there, matched = places(model), dict.fromkeys((name for name, *_ in matchers), 0)
    given = []
    for layer in model.layer_names:
        place = there.get(layer)
        if place is None:
            given.append(Given(layer, NOT_ADDRESSED, DEFAULT_RULE, wide))
            continue
        local = place.on_stage(int(flags.get(STAGES, 1)))
        hits = [(name, config) for name, pattern, config in matchers if fnmatchcase(local, pattern)]
        for name, _ in hits:
            matched[name] += 1
        rule, config = hits[0] if hits else (DEFAULT_RULE, None)
        formats = wide if config is None else configs[config][1] or wide
        if _by_flags(place, flags):
            rule, formats = "--first-last-layers-bf16", wide
        given.append(Given(layer, local, rule, formats))
    return given, matched


def _by_flags(place: Place, flags: Mapping[str, str]) -> bool:
    if "--first-last-layers-bf16" not in flags:
        return False
    first = int(flags.get("--num-layers-at-start-in-bf16", 1))
    last = int(flags.get("--num-layers-at-end-in-bf16", 1))
    return place.block < first or place.block >= place.blocks - last


def _flags(text: str) -> dict[str, str]:
    """Return the flags in the head, by name, with their values; "flags" where there are any."""
    line = re.search(r"^# flags:(.*)$", text, re.MULTILINE)
    if line is None:
        return {}
    words, found = line[1].split(), {"flags": ""}
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else after
    return found


def _dtype_of(flags: Mapping[str, str], data: Mapping[str, Any]) -> str:
    if "--fp16" in flags:
        return "float16"
    return "float32" if "flags" in flags and "--bf16" not in flags else "bfloat16"


def _scale_of(flags: Mapping[str, str], dtype: str) -> LossScale:
    if dtype != "float16":
        return LossScale()
    if "--loss-scale" in flags:
        return LossScale("fixed", float(flags["--loss-scale"]))
    if "--initial-loss-scale" not in flags:
        return LossScale()
    window = int(flags["--loss-scale-window"])
    lowest, first = float(flags["--min-loss-scale"]), float(flags["--initial-loss-scale"])
    return LossScale("dynamic", first, 2.0, 0.5, window, lowest)


def _loaded(text: str, where: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(f"{where}: pyyaml is not installed; expected pip install pyyaml") from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}; expected YAML") from None
    for key in ("configs", "matchers"):
        rows = data.get(key) if isinstance(data, dict) else None
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise InputError(f"{where}: no table {key!r}; expected configs and matchers")
    named = re.findall(r"^  (\w+):\s*$", text.partition("matchers:")[2], re.MULTILINE)
    twice = sorted({name for name in named if named.count(name) > 1})
    return data, [
        f"{name}: two matchers of this name; the last one is all that counts" for name in twice
    ]


def _factories(text: str, where: str) -> dict[str, LayerPolicy]:
    """Return what the head says of the factories in the module beside the file."""
    found = re.findall(rf"^# {FACTORIES}\.(\w+): (.*)$", text, re.MULTILINE)
    at = f"{where}: {FACTORIES}"
    return {
        f"{FACTORIES}.{name}": layer_of(json_object(row, f"{at}.{name}"), f"{at}.{name}")
        for name, row in found
    }


def _config(
    name: str,
    row: Mapping[str, Any],
    where: str,
    traps: list[str],
    own: Mapping[str, LayerPolicy],
) -> tuple[str, LayerPolicy | None]:
    """Return the recipe of a config and its formats, None for those of the run."""
    at = f"{where}: configs.{name}"
    known = ("transformer_engine_config_type", "training_recipe", "evaluation_recipe")
    for key in row:
        one_of(f"{at}: key", key, known)
    one_of(f"{at}: type", row.get(known[0]), ("TEQuantizationParams",))
    recipe = row.get("training_recipe") or {}
    _check_keys(name, recipe, at, traps)
    if recipe.get("override_nonquantized_autocast"):
        traps.append(f"{name}: override_nonquantized_autocast quantises first and last blocks too")
    if recipe.get("custom_recipe_factory") in own:
        return "", own[recipe["custom_recipe_factory"]]
    if "custom_recipe_factory" in recipe:
        traps.append(f"{name}: what its factory does is not read; taken for the dtype of the run")
        return "", None
    fp8, fp4 = recipe.get("fp8_quantization_recipe"), recipe.get("fp4_quantization_recipe")
    if fp8 and fp4:
        raise InputError(f"{at}: fp8 and fp4 recipes; expected one of them")
    if fp4:
        one_of(f"{at}: fp4_quantization_recipe", fp4, ("nvfp4",))
        return "nvfp4", uniform_layer("float4_e2m1fn")
    if not fp8:
        return "", None
    one_of(f"{at}: fp8_quantization_recipe", fp8, ("tensorwise", "mxfp8", "blockwise"))
    shape = one_of(f"{at}: fp8_format", recipe.get("fp8_format", "e4m3"), ("e4m3", "hybrid"))
    if fp8 == "blockwise":
        traps.append(f"{name}: blockwise scales are read as tensorwise, which a policy has here")
    gradients = "float8_e5m2" if shape == "hybrid" else "float8_e4m3fn"
    made = uniform_layer("float8_e4m3fn")
    formats = LayerPolicy(made.compute, made.output, gradients, made.wgrad)
    return "mx_rceil" if fp8 == "mxfp8" else "current", formats


def _check_keys(name: str, recipe: Mapping[str, Any], at: str, traps: list[str]) -> None:
    for key in recipe:
        if key in ("fp8_param", "fp4_param"):
            traps.append(
                f"{name}: {key} is refused by megatron-core 0.16.1; only its head knows it"
            )
        else:
            one_of(f"{at}.training_recipe: key", key, KEYS)


def _matchers(
    rows: Mapping[str, Mapping[str, Any]],
    configs: Mapping[str, Any],
    where: str,
    traps: list[str],
    staged: bool,
) -> Iterator[tuple[str, str, str]]:
    """Yield (name, pattern, config) of the matchers that count, in order."""
    for name, row in rows.items():
        at = f"{where}: matchers.{name}"
        if row.get("enabled") is not True:
            traps.append(f"{name}: dropped without a word: a matcher needs enabled: true")
            continue
        one_of(f"{at}: type", row.get("type"), ("glob",))
        config = one_of(f"{at}: config", row.get("config"), configs)
        pattern = row.get("pattern")
        if not isinstance(pattern, str):
            raise InputError(f"{at}: pattern {pattern!r}; expected a glob")
        if re.search(r"layers\.\d+\*", pattern):
            traps.append(f"{name}: {pattern!r} takes every number that begins so; expected a dot")
        elif re.search(r"layers\.[\d\[]", pattern) and not staged:
            traps.append(f"{name}: {pattern!r}: numbers are local to the stage of a pipeline")
        if "local_experts" not in pattern and re.search(r"experts\.linear_fc", pattern):
            traps.append(f"{name}: {pattern!r} takes grouped experts, none of local_experts")
        yield name, pattern, config


def said_in_head(policy: Policy, model: Model) -> Iterator[str]:
    """Yield comments: Megatron-Bridge's settings; of each factory, what its tensors become."""
    for line in settings_of(" ".join(flags_of(policy, model))):
        yield f"# Megatron-Bridge: {line}"
    if by_factories(policy, model):
        for name, table in tables_of(policy)[0].items():
            yield f"# {FACTORIES}.{name}: {json.dumps(table)}"
