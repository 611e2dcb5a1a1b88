"""The YAML of `--te-precision-config-file`, written: matchers in order, first match wins.

Grammar as of megatron/core/quantization/quant_config.py and core/extensions/transformer_engine.py:
`fnmatch` on the whole path of a module, case-sensitive; without `enabled: true` it is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from policysearch.export.megatron_names import places, settings_of
from policysearch.export.transformer_engine import tables_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import AS_FIRST, LayerPolicy, Policy
from policysearch.policy.products import Products
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError

RECIPES: Mapping[Scaling, tuple[str, str]] = MappingProxyType(
    {
        Scaling("current"): ("fp8_quantization_recipe", "tensorwise"),
        Scaling("mx_rceil"): ("fp8_quantization_recipe", "mxfp8"),
        Scaling("blocks", power_of_two=True, weights="squares"): (
            "fp8_quantization_recipe",
            "blockwise",
        ),
        Scaling("nvfp4", weights="squares", hadamard=True): ("fp4_quantization_recipe", "nvfp4"),
    }
)
"""By the scales of a policy, the key and the word of a training recipe that has them."""

SCALINGS: Mapping[str, Scaling] = MappingProxyType({row.recipe: row for row in RECIPES})

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
    return own or (bool(low) and policy.scaling not in RECIPES)


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
        key, word = RECIPES[SCALINGS["current"] if own else policy.scaling]
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
    if dtype == "float16":
        yield from _scale_flags(policy.loss_scale)


def _scale_flags(scale: LossScale) -> Iterator[str]:
    if scale.kind == "none":
        yield "--loss-scale 1.0"  # without a word it is dynamic, from 2^32
    elif scale.kind == "fixed":
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
        key, word = RECIPES[policy.scaling]
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


def said_in_head(policy: Policy, model: Model) -> Iterator[str]:
    """Yield comments: the settings of other runners; of each factory, what its tensors become."""
    for line in settings_of(" ".join(flags_of(policy, model))):
        yield f"# {line}"
    if by_factories(policy, model):
        for name, table in tables_of(policy)[0].items():
            yield f"# {FACTORIES}.{name}: {json.dumps(table)}"
