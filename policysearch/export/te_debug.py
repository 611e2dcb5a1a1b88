"""Export to Transformer Engine's debug tools: which products of which linears stay wide.

Grammar as of nvdlfw_inspect 0.2.2 (`config_manager.py`, run) and `debug/features` of Transformer
Engine d0067d0da (read): sections of layers and features; a layer may lie in one section alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from policysearch.export import transformer_engine
from policysearch.export.levels import bits_of, field_losses, head, why_wide
from policysearch.export.reading import (
    BASE,
    DEFAULT_RULE,
    About,
    Given,
    Reading,
    expression,
    policy_of,
    yaml_object,
)
from policysearch.export.te_sizes import refusal, sides_of, size_lines, size_traps
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import in_full, normal, of_full
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import PRESETS
from policysearch.policy.product_words import ROLES, SAME, with_words
from policysearch.policy.products import Operand, Product
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of

__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".yaml"
ABOUT = About(
    "YAML of debug_api.initialize(config_file=...), the recipe of the run in its head",
    "per linear and product: as the recipe of the run has it, or bfloat16",
    "nvdlfw_inspect 0.2.2 (run, 2026-11), Transformer Engine d0067d0da (read, 2026-08)",
    "nvdlfw_inspect's own config manager in the tests",
)
RUNS: Mapping[str, str] = MappingProxyType(
    {
        "current": "te.current",
        "delayed": "te.delayed",
        "mx_rceil": "te.mxfp8",
        "blocks": "te.float8_block",
        "nvfp4": "te.nvfp4",
    }
)
"""By the recipe of a policy, the preset that is a whole run in it."""

GEMM = ("DisableQuantizationGEMM", "DisableFP8GEMM")
LAYER = ("DisableQuantizationLayer", "DisableFP8Layer")
FEATURES = (*GEMM, *LAYER, "FakeQuant", "PerTensorScaling")
LOGS = ("LogTensorStats", "LogFp8TensorStats", "LogNvfp4TensorStats", "DumpTensors")
CHOSEN = ("layer_name_regex_pattern", "layer_types", "layer_numbers")
PLACES = {
    "fprop": ("activation", "weight"),
    "dgrad": ("gradient", "weight"),
    "wgrad": ("gradient", "activation"),
}
"""The tensors of a product, first and second, as features call them."""
FAKED = {
    "FP8E4M3": ("float8_e4m3fn", "current"),
    "FP8E5M2": ("float8_e5m2", "current"),
    "MXFP8E4M3": ("float8_e4m3fn", "mx_rceil"),
    "MXFP8E5M2": ("float8_e5m2", "mx_rceil"),
}
WIDE = "bfloat16"


def _recipe(policy: Policy) -> str:
    """Return the preset of the run around the file."""
    return RUNS.get(policy.scaling.recipe, RUNS["current"])


def _usual(name: str) -> LayerPolicy:
    """Return a linear in the recipe of a preset, its scales said."""
    return replace(PRESETS[name].layer, scaling=PRESETS[name].scaling)


def _with_wide(row: LayerPolicy, wide: Sequence[str]) -> LayerPolicy:
    """Return a linear some of whose products are wide."""
    if len(wide) == len(ROLES):
        return uniform_layer(WIDE)
    return with_words(row, " ".join(f"{role}={WIDE}" for role in wide) or SAME)


def _wide_in(asked: LayerPolicy, usual: LayerPolicy) -> tuple[str, ...]:
    """Return the products that are wide, or wider than the run has them."""
    bits = {
        role: [
            (bits_of(a.format), bits_of(b.format))
            for a, b in zip(asked.product(role).operands, usual.product(role).operands, strict=True)
        ]
        for role in ROLES
    }
    return tuple(role for role, pairs in bits.items() if any(a > b for a, b in pairs))


def _rows(policy: Policy, model: Model) -> dict[str, tuple[str, ...]]:
    """Return the wide products of every linear."""
    usual, rows = _usual(_recipe(policy)), {}
    for name in transformer_engine.linears(model):
        wide = _wide_in(policy.layer(name), usual)
        made = policy.with_layers({name: _with_wide(usual, wide)})
        rows[name] = ROLES if refusal(sides_of(model, name), in_full(made, name)) else wide
    return rows


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that linears with such a file obey, all else in bfloat16."""
    usual, wide = _usual(_recipe(policy)), _rows(policy, model)
    layers = tuple((name, _with_wide(usual, wide.get(name, ROLES))) for name, _ in policy.layers)
    there = transformer_engine.runs(policy, model)
    return normal(replace(there, layers=layers, scaling=Scaling()))


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what linears with such a file do not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    asked, running = normal(policy), runs(policy, model)

    other = f"the run around the file is {PRESETS[_recipe(policy)].called}"

    def why(layer: str) -> str:
        refused = refusal(sides_of(model, layer), in_full(asked, layer))
        return why_wide(layer, model, "Transformer Engine", 1, refused or other)

    return tuple(field_losses(asked, running, "te_debug", why))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer can run in these formats, in a recipe that has them."""
    if formats == uniform_layer(WIDE):
        return True
    usual = (replace(_usual(name), scaling=None) for name in RUNS.values())
    return layer_type in ("", "Linear") and any(
        formats == _with_wide(row, _wide_in(formats, row)) for row in usual
    )


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return the YAML: a section for each set of products that stay wide, names matched whole."""
    sections: dict[tuple[str, ...], list[str]] = {}
    for name, wide in _rows(policy, model).items():
        if wide:
            sections.setdefault(wide, []).append(name)
    recipe = PRESETS[_recipe(policy)].called
    said = [
        head(policy, notes, losses(policy, model), "te_debug"),
        f"# recipe: {recipe}",
        "#",
        "# What stays wide in a run of that recipe; for diagnosis, as debug mode is slow:",
        "#     debug_api.initialize(config_file=THIS_FILE, feature_dirs=[...])",
        "#     debug_api.infer_and_assign_layer_names(model)",
        "# A pattern is looked for anywhere in a name: here each is anchored. Linears in none",
        "# multiply as the recipe has it, all others multiply in the dtype of the run.",
        *size_lines(model, transformer_engine.linears(model)),
    ]
    if not sections:  # a file without a section fails
        sections[ROLES] = []
    for wide, names in sections.items():
        said += _section(wide, names)
    return "\n".join((*said, ""))


def _section(wide: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a section; without names it matches nothing."""
    whole = len(wide) == len(ROLES)
    yield f"{'wide' if whole else '_'.join((*wide, 'wide'))}:"
    yield "  enabled: true"
    yield "  layers:"
    pattern = f"^({'|'.join(map(re.escape, names))})$" if names else "(?!)"
    quoted = pattern.replace("'", "''")
    yield f"    layer_name_regex_pattern: '{quoted}'"
    yield "  transformer_engine:"
    yield f"    {LAYER[0] if whole else GEMM[0]}:"
    yield "      enabled: true"
    if not whole:
        yield f"      gemms: [{', '.join(wide)}]"


def read(text: str, model: Model, where: str) -> Reading:
    """Return what such a file gives the linears of `model` in a run of the recipe in its head."""
    data, traps = yaml_object(text, where), []
    found = re.search(r"^# recipe: (\w+)", text, re.MULTILINE)
    called = {str(PRESETS[x].called).partition("(")[0]: x for x in RUNS.values()}
    if found is None:
        traps.append("no line # recipe: in the head: taken as Float8CurrentScaling")
    name = one_of(f"{where}: recipe", found[1] if found else "Float8CurrentScaling", called)
    usual, given = _usual(called[name]), []
    sections = {key: row for key, row in data.items() if _is_on(key, row, where)}
    for key, row in sections.items():
        traps += _traps(key, row, where)
    for layer in model.layer_names:
        if model.layer_types.get(layer) != "Linear":
            given.append(Given(layer, layer, DEFAULT_RULE, uniform_layer(WIDE)))
            continue
        hits = [key for key, row in sections.items() if _is_chosen(layer, key, row, where)]
        if len(hits) > 1:
            raise InputError(f"{where}: {layer}: in {' and '.join(hits)}; expected one section")
        formats = _section_formats(usual, sections[hits[0]], hits[0], where) if hits else usual
        given.append(Given(layer, layer, hits[0] if hits else DEFAULT_RULE, formats))
    deciding = {row.rule for row in given}
    unused = tuple(f"{key}: never matches" for key in data if key not in deciding)
    policy = policy_of(given, model, f"imported from {where}", BASE)
    sides = {layer: sides_of(model, layer) for layer in transformer_engine.linears(model)}
    traps += size_traps(policy, sides)
    return Reading(normal(policy), tuple(given), unused, tuple(traps))


def _is_on(key: str, row: Any, where: str) -> bool:
    """Return whether a section counts; InputError where it is none."""
    if not isinstance(row, dict) or "enabled" not in row or not isinstance(row.get("layers"), dict):
        raise InputError(f"{where}: {key}: no section; expected enabled, layers and features")
    return row["enabled"] is True


def _traps(key: str, row: Mapping[str, Any], where: str) -> Iterator[str]:
    """Yield a line for each known trap of a section; InputError for what is refused there."""
    layers = row["layers"]
    if "exact_layer_names" in layers:
        given = f"{where}: {key}: exact_layer_names"
        raise InputError(f"{given}: fails at the first layer of another name; expected a pattern")
    if isinstance(layers.get("layer_numbers"), int):
        raise InputError(f"{where}: {key}: layer_numbers: a number; expected a list of them")
    if not any(word in layers for word in CHOSEN):
        raise InputError(f"{where}: {key}: layers; expected one of {', '.join(CHOSEN)}")
    for word in layers:
        if word not in CHOSEN:
            yield f"{key}: layers: {word!r} is ignored there without a word"
    pattern = layers.get("layer_name_regex_pattern", "")
    expression(pattern, f"{where}: {key}: layer_name_regex_pattern")
    if re.search(r"\d$", pattern) or re.search(r"layers\\?\.\d+\W*$", pattern):
        yield f"{key}: {pattern!r} is looked for anywhere: it takes every number that begins so"
    for name in row.get("transformer_engine", {}):
        one_of(f"{where}: {key}: feature", name, (*FEATURES, *LOGS))
        if name in (GEMM[1], LAYER[1]):
            yield f"{key}: {name} is an old name of {GEMM[0] if name == GEMM[1] else LAYER[0]}"


def _is_chosen(layer: str, key: str, row: Mapping[str, Any], where: str) -> bool:
    """Return whether a section is for a layer of this name, as `is_layer_in_cfg` has it."""
    layers = row["layers"]
    if "layer_name_regex_pattern" in layers:
        return re.search(layers["layer_name_regex_pattern"], layer) is not None
    types = layers.get("layer_types")
    typed = types is None or "all" in types or any(each in layer for each in types)
    numbers = layers.get("layer_numbers")
    if numbers is None:
        return typed
    there = re.findall(r"(?<!fc)\d+", layer)
    if len(there) != 1:
        given = f"{where}: {key}: layer_numbers with the name {layer}"
        raise InputError(f"{given}; expected names with one number")
    return typed and (numbers in ("all", ["all"]) or int(there[0]) in [*_numbers(numbers)])


def _numbers(said: Sequence[Any]) -> Iterator[int]:
    for each in said:
        low, _, high = str(each).partition("-")
        yield from range(int(low), int(high or low) + 1)


def _section_formats(
    usual: LayerPolicy, row: Mapping[str, Any], key: str, where: str
) -> LayerPolicy:
    """Return the formats of a linear after the features of its section."""
    features = row.get("transformer_engine", {})
    on = {name: said for name, said in features.items() if said.get("enabled")}
    wide = list(ROLES) if any(name in on for name in LAYER) else []
    for name in GEMM:
        wide += on.get(name, {}).get("gemms", [])
    for role in wide:
        one_of(f"{where}: {key}: gemms", role, ROLES)
    made = _with_wide(usual, tuple(role for role in ROLES if role in wide))
    products = {role: made.product(role) for role in ROLES}
    if on.get("PerTensorScaling") and (usual.scaling or Scaling()).recipe != "delayed":
        given = f"{where}: {key}: PerTensorScaling in a run of another recipe"
        raise InputError(f"{given}; expected DelayedScaling, the one where it is allowed")
    for name in ("FakeQuant", "PerTensorScaling"):
        for role, tensor, said in _tensors(on.get(name, {}), f"{where}: {key}: {name}"):
            part = ("first", "second")[PLACES[role].index(tensor)]
            before: Operand = getattr(products[role], part)
            operand = _operand(before, name, said, f"{where}: {key}: {name}")
            products[role] = replace(products[role], **{part: operand})  # type: ignore[arg-type]
    if products == {role: made.product(role) for role in ROLES}:
        return made
    full = {role: _product_with_scales(row, usual.scaling) for role, row in products.items()}
    return of_full(replace(made, output=WIDE, wgrad=WIDE), full)


def _operand(before: Operand, feature: str, said: Mapping[str, Any], at: str) -> Operand:
    """Return what a feature makes of an operand; its format is the run's by PerTensorScaling."""
    margin = int(said.get("margin", 0))
    if feature == "PerTensorScaling":
        return replace(before, scaling=Scaling("current", margin))
    name, recipe = FAKED[one_of(f"{at}: quant_format", said.get("quant_format"), FAKED)]
    scaling = Scaling(recipe, margin if recipe == "current" else 0)  # type: ignore[arg-type]
    return Operand(name, scaling=scaling)


def _product_with_scales(product: Product, scaling: Scaling | None) -> Product:
    """Return the product with the scales of the run where an operand says none."""

    def full(operand: Operand) -> Operand:
        low = bits_of(operand.format) < 16
        return replace(operand, scaling=(operand.scaling or scaling) if low else None)

    return replace(product, first=full(product.first), second=full(product.second))


def _tensors(said: Mapping[str, Any], at: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the product, the tensor and the settings of each row of a feature."""
    gemms = said.get("gemms_struct") or [{"gemm": gemm} for gemm in said.get("gemms", ())]
    for gemm in gemms:
        role = one_of(f"{at}: gemm", gemm.get("gemm"), ROLES)
        inner = {**said, **gemm}
        rows = inner.get("tensors_struct") or [{"tensor": x} for x in inner.get("tensors", ())]
        for row in rows:
            if row.get("tensor") in PLACES[role]:
                yield role, row["tensor"], {**inner, **row}
