"""The YAML of `--te-precision-config-file` as a run has it: which recipe a linear multiplies in.

Of megatron/core/extensions/transformer_engine.py: the flags quantise a run, or not; a matcher
overrides what is quantised around a linear unless its recipe says `override_quantized_autocast:
false`, and what is not quantised there (first and last blocks, too) only with
`override_nonquantized_autocast: true`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from policysearch.export.levels import BASE
from policysearch.export.megatron_file import DTYPES, FACTORIES, KEYS, RECIPES, STAGES
from policysearch.export.megatron_names import NOT_ADDRESSED, Place, places, sides_there
from policysearch.export.reading import (
    DEFAULT_RULE,
    Given,
    Reading,
    json_object,
    policy_of,
    unmatched,
    yaml_object,
)
from policysearch.export.te_sizes import size_traps
from policysearch.export.transformer_engine import layer_of
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import normal
from policysearch.policy.policy import AS_FIRST, LayerPolicy, uniform_layer
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of

FP8, FP4 = "fp8_quantization_recipe", "fp4_quantization_recipe"
WORDS = {key: tuple(word for k, word in RECIPES.values() if k == key) for key in (FP8, FP4)}
ENDS = "--first-last-layers-bf16"
GATHER = ("--fp8-param-gather", "--fp4-param-gather")
NOT_READ: Mapping[str, str] = MappingProxyType(
    {
        "--fp8-output-proj": "the output layer multiplies in MXFP8",
        "--fp8-dot-product-attention": "the products of attention are in FP8",
        "--fp8-multi-head-attention": "attention is in FP8, what goes in and out too",
        "--no-fp8-wgrad": "gradients of weights in the dtype of the run, if delayed",
        "--main-params-dtype": "what masters are kept in",
        "--main-grads-dtype": "what gradients are kept in",
    }
)
"""Flags that change formats and are not followed, but where they say fp32."""


@dataclass(frozen=True)
class _Config:
    """What a config does: formats of its linears, None for the dtype of the run, and where it acts.

    `inside` what the flags quantise, and `outside` of that. It `validates` by another recipe.
    """

    formats: LayerPolicy | None
    inside: bool = True
    outside: bool = False
    validates: bool = False


@dataclass(frozen=True)
class _Run:
    """What flags say of a run: its dtype, and what linears multiply in that no matcher takes.

    `known` is false where the file says no flags: then every matcher is taken to act.
    """

    flags: Mapping[str, str]
    wide: LayerPolicy
    around: LayerPolicy | None

    @property
    def known(self) -> bool:
        return bool(self.flags)


def read(text: str, model: Model, where: str) -> Reading:
    """Return what such a file gives the linears of `model`, by megatron-core's rules.

    The flags of the run stand in a line "# flags: --bf16 --fp8-format e4m3 ..." of its head.
    """
    data, traps = _sections(text, where)
    own, flags = _factories(text, where), _flags(text)
    configs = {n: _config(n, row, where, traps, own) for n, row in data["configs"].items()}
    matchers = [*_matchers(data["matchers"], configs, where, traps, STAGES in flags)]
    dtype = _dtype_of(flags)
    run = _Run(flags, uniform_layer(dtype), _around(flags, where))
    given, matched = _given(model, matchers, configs, run)
    used = dict.fromkeys(config for *_, config in matchers)
    other = "validation runs by its evaluation_recipe, training is what is read"
    traps += [f"{name}: {other}" for name in used if configs[name].validates]
    traps += _traps(run, matchers, configs, given)
    first, second = (DTYPES[flags.get(f"--{x}-dtype", "fp32")] for x in ("exp-avg", "exp-avg-sq"))
    policy = policy_of(
        given,
        model,
        f"imported from {where}",
        BASE,
        optimizer_state=first,
        second_moment=second if second != first else AS_FIRST,
        all_reduce="bfloat16" if "--grad-reduce-in-bf16" in flags else "float32",
        loss_scale=_scale_of(flags, dtype),
    )
    low = {row.layer for row in given if row.formats != run.wide}
    traps += size_traps(policy, {n: x for n, x in sides_there(model).items() if n in low})
    # one of all takes what this net has not, as the last one of an export does
    some = [name for name, pattern, _ in matchers if pattern != "*"]
    idle = unmatched(some, given, matched)
    unread = [f"{flag}: {NOT_READ[flag]}" for flag in NOT_READ if flags.get(flag, "fp32") != "fp32"]
    return Reading(normal(policy), tuple(given), idle, tuple(traps), tuple(unread))


def _given(
    model: Model,
    matchers: Sequence[tuple[str, str, str]],
    configs: Mapping[str, _Config],
    run: _Run,
) -> tuple[list[Given], dict[str, int]]:
    """Return what each layer gets, and how many layers each matcher fits."""
    there, matched = places(model), dict.fromkeys((name for name, *_ in matchers), 0)
    given = []
    for layer in model.layer_names:
        place = there.get(layer)
        if place is None:
            given.append(Given(layer, NOT_ADDRESSED, DEFAULT_RULE, run.wide))
            continue
        local = place.on_stage(int(run.flags.get(STAGES, 1)))
        hits = [(name, config) for name, pattern, config in matchers if fnmatchcase(local, pattern)]
        for name, _ in hits:
            matched[name] += 1
        rule, config = hits[0] if hits else (DEFAULT_RULE, "")
        given.append(Given(layer, local, *_deciding_rule(place, rule, configs.get(config), run)))
    return given, matched


def _deciding_rule(
    place: Place, rule: str, config: _Config | None, run: _Run
) -> tuple[str, LayerPolicy]:
    """Return the rule that decides of a linear, and its formats."""
    ends = ENDS in run.flags and _is_end(place, run.flags)
    around = None if ends else run.around
    quantised = around is not None or not (ends or run.known)
    if config is not None and (config.inside if quantised else config.outside):
        return rule, config.formats or run.wide
    if ends:
        return ENDS, run.wide
    if config is not None:
        return rule, around or run.wide
    return ("flags" if around else DEFAULT_RULE), around or run.wide


def _is_end(place: Place, flags: Mapping[str, str]) -> bool:
    first = int(flags.get("--num-layers-at-start-in-bf16", 1))
    last = int(flags.get("--num-layers-at-end-in-bf16", 1))
    return place.block < first or place.block >= place.blocks - last


def _traps(
    run: _Run,
    matchers: Sequence[tuple[str, str, str]],
    configs: Mapping[str, _Config],
    given: Sequence[Given],
) -> Iterator[str]:
    """Yield a line for what flags make of matchers and of the scale otherwise than these say."""
    if not run.known:
        yield (
            'no line "# flags: --bf16 --fp8-format ..." in the head: what no matcher takes does '
            "what the run does, here bf16"
        )
        return
    used = {row.rule for row in given}
    for name, _, config in matchers:
        row = configs[config]
        if name in used and row.formats is not None and run.around is None and not row.outside:
            yield f"{name}: nothing around it is quantised (no --fp8-format): it does nothing"
    delayed = run.flags.get("--fp8-recipe", "delayed") == "delayed"
    if {ENDS, "--fp8-format"} <= {*run.flags} and delayed:
        yield f"{ENDS}: refused with --fp8-recipe delayed, which is what is usual"
    wide = [x.layer for x in given if x.module != NOT_ADDRESSED and x.formats == run.wide]
    for flag in GATHER:
        if flag in run.flags and wide:
            yield f"{flag}: {wide[0]} is stored quantised and multiplies in the dtype of the run"
    dynamic = "--fp16" in run.flags and "--loss-scale" not in run.flags
    if dynamic and run.flags.get("--hysteresis", "2") != "1":
        yield "--hysteresis: 2 overflows lower the scale once; read as 1, as a policy has it"


def _flags(text: str) -> dict[str, str]:
    """Return the flags in the head, by name, with their values; none where it has no such line."""
    line = re.search(r"^# flags:(.*)$", text, re.MULTILINE)
    if line is None:
        return {}
    words, found = line[1].replace("=", " ").split(), {"flags": ""}
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else after
    return found


def _around(flags: Mapping[str, str], where: str) -> LayerPolicy | None:
    """Return what the flags quantise linears to, None for nothing."""
    at = f"{where}: flags"
    if "--fp4-format" in flags:
        word = one_of(f"{at}: --fp4-recipe", flags.get("--fp4-recipe", "nvfp4"), WORDS[FP4])
        return _low(FP4, word, "e4m3")
    if "--fp8-format" not in flags:
        return None
    shape = one_of(f"{at}: --fp8-format", flags["--fp8-format"], ("e4m3", "hybrid"))
    known = ("delayed", *WORDS[FP8])
    word = one_of(f"{at}: --fp8-recipe", flags.get("--fp8-recipe", "delayed"), known)
    if word != "delayed":
        return _low(FP8, word, shape)
    history = int(flags.get("--fp8-amax-history-len", 1))
    algorithm: Any = flags.get("--fp8-amax-compute-algo", "most_recent")
    margin = int(flags.get("--fp8-margin", 0))
    scaling = Scaling("delayed", margin, history, algorithm)
    return replace(_low(FP8, "tensorwise", shape), scaling=scaling)


def _low(key: str, word: str, shape: str) -> LayerPolicy:
    """Return the formats of a recipe's word, with its scales."""
    scaling = next(row for row, said in RECIPES.items() if said == (key, word))
    if key == FP4:
        return replace(uniform_layer("float4_e2m1fn"), scaling=scaling)
    gradients = "float8_e5m2" if shape == "hybrid" else "float8_e4m3fn"
    return replace(uniform_layer("float8_e4m3fn"), grad=gradients, scaling=scaling)


def _dtype_of(flags: Mapping[str, str]) -> str:
    if "--fp16" in flags:
        return "float16"
    return "float32" if flags and "--bf16" not in flags else "bfloat16"


def _scale_of(flags: Mapping[str, str], dtype: str) -> LossScale:
    if dtype != "float16":
        return LossScale()
    if fixed := float(flags.get("--loss-scale", 0)):
        return LossScale() if fixed == 1 else LossScale("fixed", fixed)
    window = int(flags.get("--loss-scale-window", 1000))
    lowest = float(flags.get("--min-loss-scale", 1))
    first = float(flags.get("--initial-loss-scale", 2.0**32))
    return LossScale("dynamic", first, 2.0, 0.5, window, lowest)


def _sections(text: str, where: str) -> tuple[dict[str, dict[str, Any]], list[str]]:
    data = yaml_object(text, where)
    import yaml  # type: ignore[import-untyped]

    nodes = yaml.compose(text, Loader=yaml.SafeLoader)  # a key that is there twice is two
    for key in ("configs", "matchers"):
        rows = data.get(key)
        if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
            raise InputError(f"{where}: no table {key!r}; expected configs and matchers")
    rows = next(rows for key, rows in nodes.value if key.value == "matchers")
    named = [key.value for key, _ in rows.value]
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
) -> _Config:
    """Return what a config does."""
    at = f"{where}: configs.{name}"
    known = ("transformer_engine_config_type", "training_recipe", "evaluation_recipe")
    for key in row:
        one_of(f"{at}: key", key, known)
    one_of(f"{at}: type", row.get(known[0]), ("TEQuantizationParams",))
    if known[1] not in row:
        raise InputError(f"{at}: no training_recipe; expected one, {{}} for the dtype of the run")
    recipe, other = (row.get(key) or {} for key in known[1:])
    for key, said in (("training", recipe), ("evaluation", other)):
        _check_keys(name, said, f"{at}.{key}_recipe", traps)
    inside = recipe.get("override_quantized_autocast", True) is True
    outside = recipe.get("override_nonquantized_autocast", False) is True
    if outside:
        traps.append(f"{name}: override_nonquantized_autocast quantises first and last blocks too")
    formats = _formats(name, recipe, at, traps, own)
    return _Config(formats, inside, outside, known[2] in row and other != recipe)


def _formats(
    name: str,
    recipe: Mapping[str, Any],
    at: str,
    traps: list[str],
    own: Mapping[str, LayerPolicy],
) -> LayerPolicy | None:
    """Return the formats of a training recipe, None for those of the run."""
    if recipe.get("custom_recipe_factory") in own:
        return own[recipe["custom_recipe_factory"]]
    if "custom_recipe_factory" in recipe:
        traps.append(f"{name}: what its factory does is not read; taken for the dtype of the run")
        return None
    fp8, fp4 = recipe.get(FP8), recipe.get(FP4)
    if fp8 and fp4:
        raise InputError(f"{at}: fp8 and fp4 recipes; expected one of them")
    if fp4:
        return _low(FP4, one_of(f"{at}: {FP4}", fp4, WORDS[FP4]), "e4m3")
    if not fp8:
        return None
    one_of(f"{at}: {FP8}", fp8, WORDS[FP8])
    shape = one_of(f"{at}: fp8_format", recipe.get("fp8_format", "e4m3"), ("e4m3", "hybrid"))
    return _low(FP8, fp8, shape)


def _check_keys(name: str, recipe: Mapping[str, Any], at: str, traps: list[str]) -> None:
    for key in recipe:
        if key in ("fp8_param", "fp4_param"):
            traps.append(
                f"{name}: {key} is refused by megatron-core 0.16.1; only its head knows it"
            )
        else:
            one_of(f"{at}: key", key, KEYS)


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
        if re.match(r"\*\.?layers\.", pattern):
            traps.append(f"{name}: {pattern!r} takes mtp.layers too; expected decoder. before it")
        if "local_experts" not in pattern and re.search(r"(?<!shared_)experts\.linear_fc", pattern):
            traps.append(f"{name}: {pattern!r} takes grouped experts, none of local_experts")
        yield name, pattern, config
