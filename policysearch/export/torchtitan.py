"""Export to torchtitan: the list of converters of a run, and what their texts take and leave.

Sources: `components/quantization/{float8,mx,utils}.py` of torchtitan b5bcd76c6 (0.3.0), whose
`module_filter_fn` looks for a text anywhere in a name; older runs say the same in TOML.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any, Literal

from policysearch.export import torchao
from policysearch.export.levels import BASE, field_losses, head, why_wide
from policysearch.export.reading import (
    DEFAULT_RULE,
    About,
    Given,
    Reading,
    literal,
    policy_of,
)
from policysearch.files import syntax_of
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import normal
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of

__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".py"
ABOUT = About(
    "a module to import: converters() of a run's config; its TOML of older runs is read too",
    "per linear: FP8 by rows, with wgrad in bfloat16 or not, or MXFP8; bfloat16 for the rest",
    "torchtitan b5bcd76c6 and 0.3.0 (read, 2026-08)",
    "its module_filter_fn, copied, in the tests",
)

TEMPLATE = '''\
$head
#
#     config.model_spec = model_registry(FLAVOR, converters=converters())   # config_registry.py
#     config.training.mixed_precision_param = MIXED_PRECISION_PARAM
#
# A text is looked for anywhere in the name of a linear: "layers.1" would take layers.10 as well.
# What is converted is FP8, all others multiply in the dtype of the run.

MIXED_PRECISION_PARAM = $dtype


def converters(model_compile_enabled=True):
    """Return what converts linears. emulate=True would drop the recipe: it is not for runs."""
    $body
'''

FLOAT8 = """\
from torchtitan.components.quantization import Float8LinearConverter

    # linears with one of these texts in their name are left alone, and those with a side that is
    # no multiple of 16
    return [
        Float8LinearConverter.Config(
            recipe_name=$recipe,
            filter_fqns=$texts,
            model_compile_enabled=model_compile_enabled,
        )
    ]"""

MX = """\
from torchtitan.components.quantization import MXFP8LinearConverter

    # linears with one of these texts in their name are converted, and no others
    return [
        MXFP8LinearConverter.Config(
            fqns=$texts,
            model_compile_enabled=model_compile_enabled,
        )
    ]"""

MXFP8, AUTO = "mxfp8", "auto_filter_small_kn"
BLOCK = 32
"""Sides of a linear in MXFP8 are multiples of this."""
DTYPES = ("bfloat16", "float32")
KEYS = {
    "Float8LinearConverter": "recipe_name filter_fqns emulate model_compile_enabled "
    "enable_fsdp_float8_all_gather precompute_float8_dynamic_scale_for_fsdp "
    "force_recompute_fp8_weight_in_bwd",
    "MXFP8LinearConverter": "recipe_name fqns filter_fqns model_compile_enabled "
    "mxfp8_dim1_cast_kernel_choice weight_quantization",
}
TABLES = {
    "float8": "Float8LinearConverter",
    "quantize.linear.float8": "Float8LinearConverter",
    "quantize.linear.mx": "MXFP8LinearConverter",
}
"""The converters of older runs, by what `model.converters` calls them."""


@dataclass(frozen=True)
class _Converter:
    """A converter of a run: its kind, and the texts of those that it leaves, or (`only`) takes."""

    name: str
    kind: str
    texts: tuple[str, ...]
    only: bool = False

    def takes(self, layer: str, sides: Sequence[int]) -> bool:
        """Return whether it converts a linear of this name and these sides."""
        found = any(text in layer for text in self.texts)
        if self.only:
            return found or not self.texts
        return not found and not any(side % 16 for side in sides)


def _low(kind: str) -> LayerPolicy:
    """Return the formats of a linear that a converter of this kind has made."""
    if kind == MXFP8:
        low = replace(uniform_layer("float8_e4m3fn"), grad="float8_e4m3fn")
        return replace(low, scaling=Scaling("mx_rceil"))
    recipe = torchao.RECIPES.get(kind, "rowwise")
    row = torchao._low(recipe, kind if kind == torchao.GW_HP else "float8")
    scaling = Scaling(recipe, power_of_two=recipe == "rowwise")  # type: ignore[arg-type]
    return replace(row, scaling=scaling)


def _linears(model: Model) -> dict[str, list[int]]:
    """Return the sides of every linear by its name."""
    return {
        name: [side for spec in model.parameters_of(name) for side in spec.shape]
        for name, kind in model.layer_types.items()
        if kind == "Linear"
    }


def _converter(policy: Policy, model: Model) -> _Converter | None:
    """Return the converter that has most of the low linears as asked, None where none is low."""
    linears = _linears(model)
    if policy.scaling.recipe in ("mx", "mx_rceil"):
        low = [x for x in linears if torchao._kind(policy, x, model) == "float8"]
        low = [x for x in low if not any(side % BLOCK for side in linears[x])]
        texts, _ = _texts(low, [x for x in linears if x not in low])
        return _Converter("MXFP8LinearConverter", MXFP8, texts, only=True) if texts else None
    kinds = {x: torchao._kind(policy, x, model) for x in linears}
    wholes = [x for x in linears if kinds[x] == "float8"]
    halves = [x for x in linears if kinds[x] == torchao.GW_HP]
    low, kind = (wholes, "rowwise") if len(wholes) >= len(halves) else (halves, torchao.GW_HP)
    if not low:
        return None
    fitting = [x for x in linears if not any(side % 16 for side in linears[x])]
    wide = [x for x in fitting if x not in low]
    texts, missed = _texts(wide, low)
    made = _Converter("Float8LinearConverter", kind, (*texts, *missed))
    return made if any(made.takes(x, linears[x]) for x in low) else None


def _texts(wanted: Sequence[str], others: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return few texts that are in the wanted names and in no other, and the names without one."""
    options = {text for name in wanted for text in _parts(name)}
    exact = {t: {n for n in wanted if t in n} for t in options if not any(t in o for o in others)}
    chosen: list[str] = []
    left = {*wanted}
    while covering := {text: len(names & left) for text, names in exact.items() if names & left}:
        best = min(covering, key=lambda text: (-covering[text], len(text), text))
        chosen.append(best)
        left -= exact[best]
    return tuple(chosen), sorted(left)


def _parts(name: str) -> Iterator[str]:
    """Yield what a text of a name may be: its ends behind a dot, its beginnings with one, whole."""
    words = name.split(".")
    yield name
    yield from ("." + ".".join(words[start:]) for start in range(1, len(words)))
    yield from (".".join(words[:end]) + "." for end in range(1, len(words)))


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a run with these converters obeys."""
    converter, linears = _converter(policy, model), _linears(model)
    computed = {row.compute for _, row in policy.layers} - {"tfloat32"}
    layers = dict.fromkeys(
        model.layer_names, uniform_layer("float32" if computed <= {"float32"} else "bfloat16")
    )
    if converter is not None:
        taken = (name for name, sides in linears.items() if converter.takes(name, sides))
        layers |= dict.fromkeys(taken, _low(converter.kind))
    named = tuple((name, layers[name]) for name, _ in policy.layers)
    there = torchao.runs(policy, model)
    bias: Literal["rounded", "fused"] = "fused" if converter is None else "rounded"
    return normal(replace(there, layers=named, bias=bias, scaling=Scaling()))


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what such a run does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    asked, running = normal(policy), runs(policy, model)
    made = _converter(policy, model)

    def why(layer: str) -> str:
        other = "one recipe of one converter is all that a run has"
        for name in _linears(model):
            if name != layer and name in layer:
                other = f"{name!r}, the text that leaves another linear wide, is in its name"
        return why_wide(layer, model, "torchtitan", BLOCK if made and made.only else 16, other)

    return tuple(field_losses(asked, running, "torchtitan", why))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats: a linear in FP8, others in bfloat16."""
    if formats in (uniform_layer("float32"), uniform_layer("bfloat16")):
        return True
    low = [replace(_low(kind), scaling=None) for kind in ("rowwise", torchao.GW_HP, MXFP8)]
    return layer_type in ("", "Linear") and formats in low


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `converters`, which the config of a run is given."""
    policy.check_layers(model.layer_names)
    converter, running = _converter(policy, model), runs(policy, model)
    body = "return []"
    if converter is not None:
        listed = "".join(f"                {text!r},\n" for text in converter.texts)
        said = {"texts": f"[\n{listed}            ]" if listed else "[]"}
        text = MX if converter.only else FLOAT8
        body = Template(text).substitute(said, recipe=repr(converter.kind))
    dtypes = {row.compute for _, row in running.layers}
    return Template(TEMPLATE).substitute(
        head=head(policy, notes, losses(policy, model), "torchtitan"),
        dtype=repr("float32" if dtypes == {"float32"} else "bfloat16"),
        body=body,
    )


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the converters of a run, in Python or in TOML, give the linears of `model`."""
    traps: list[str] = []
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        data = {}
    said = _in_toml(data, where) if data else _in_python(text, where)
    converters = [_made(name, row, where, traps, bool(data)) for name, row in said]
    dtype = _dtype(data, text, where)
    linears, given = _linears(model), []
    hit = {text: 0 for made in converters for text in made.texts}
    traps += _refusals(converters, linears)
    for layer in model.layer_names:
        taker = None
        if layer in linears:
            taking = (x for x in converters if x.takes(layer, linears[layer]))
            taker = next(taking, None)
            hit |= {text: count + (text in layer) for text, count in hit.items()}
        rule = DEFAULT_RULE if taker is None else taker.name
        formats = uniform_layer(dtype) if taker is None else _low(taker.kind)
        given.append(Given(layer, layer, rule, formats))
    unused = [f"{text!r}: never matches: in the name of no linear" for text in hit if not hit[text]]
    unused += _idle(data)
    bias = "rounded" if any(row.rule != DEFAULT_RULE for row in given) else "fused"
    policy = policy_of(given, model, f"imported from {where}", BASE, bias=bias)
    return Reading(normal(policy), tuple(given), tuple(unused), tuple(traps))


def _in_toml(data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the converters that the TOML of an older run names, with their settings."""
    if "model" not in data:
        raise InputError(f"{where}: no table [model]; expected a run's TOML of torchtitan")
    for name in _item_list(data.get("model", {}).get("converters", [])):
        if name in TABLES:
            yield TABLES[name], _table(data, name) or _table(data, f"quantize.linear.{name}")
        elif "quantize" in name or "float8" in name or "mx" in name:
            one_of(f"{where}: model.converters", name, (*TABLES, "quantize.grouped_mm.float8"))


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    for word in name.split("."):
        data = data.get(word, {})
    return data


def _idle(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each table of settings whose converter is not named."""
    named = _item_list(data.get("model", {}).get("converters", []))
    for name in TABLES:
        if _table(data, name) and not {name, name.rpartition(".")[2]} & {*named}:
            yield f"[{name}]: never matches: model.converters does not name it"


def _item_list(value: Any) -> list[str]:
    return [x.strip() for x in value.split(",")] if isinstance(value, str) else [*value]


def _in_python(text: str, where: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the converters that a file in Python makes, with their settings; nothing is run."""
    tree = syntax_of(text, where, "Python or TOML of torchtitan")
    known = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: list[tuple[str, Mapping[str, Any]]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = re.search(r"(\w+)\.Config$", ast.unparse(node.func))
        if name is not None and name[1] in KEYS:
            said = {str(row.arg): _value(row.value, known) for row in node.keywords}
            found.append((name[1], said))
    if not found and "converters" not in text:
        raise InputError(f"{where}: no converters; expected {' or '.join(KEYS)} in it")
    return found


def _value(node: ast.expr, known: Mapping[str, ast.expr]) -> Any:
    """Return a constant, also one that a name at the top of the file stands for; else None."""
    if isinstance(node, ast.Name) and node.id in known:
        node = known[node.id]
    return literal(node)


def _made(
    name: str, said: Mapping[str, Any], where: str, traps: list[str], older: bool
) -> _Converter:
    """Return a converter of these settings, as torchtitan makes it; an `older` one has TOML."""
    at = f"{where}: {name}"
    for key in said:
        one_of(f"{at}: key", key, KEYS[name].split())
    texts = tuple(_item_list(said.get("filter_fqns") or said.get("fqns") or []))
    for text in texts:
        if re.search(r"layers\.\d+$", text):
            traps.append(f"{text!r} takes every number that begins so; expected a dot behind it")
    if AUTO in texts:
        traps.append(f"{AUTO}: small linears are left alone by torchao's own table; not read")
        texts = tuple(text for text in texts if text != AUTO)
    if name == "MXFP8LinearConverter":
        if not texts and "filter_fqns" not in said:
            traps.append("fqns: an empty list takes every linear, the output too")
        return _Converter(name, MXFP8, texts, only="filter_fqns" not in said)
    older |= any(key.startswith(("enable_fsdp", "precompute")) for key in said)
    kind = said.get("recipe_name") or ("tensorwise" if older else "rowwise")
    one_of(f"{at}: recipe_name", kind, (*torchao.RECIPES, torchao.GW_HP))
    if kind == "tensorwise" and not older and not said.get("emulate"):
        traps.append("recipe_name: tensorwise is gone in torchtitan 0.3.0; rowwise is what is left")
    if said.get("emulate"):
        traps.append("emulate: true drops the recipe: one scale of a tensor, for tests alone")
        kind = "tensorwise"
    return _Converter(name, kind, texts)


def _refusals(converters: Sequence[_Converter], linears: Mapping[str, list[int]]) -> Iterator[str]:
    """Yield a line for each linear that MXFP8 takes and cannot multiply: it asks for no sizes."""
    for made in converters:
        for layer, sides in linears.items():
            if made.kind == MXFP8 and made.takes(layer, sides) and any(x % BLOCK for x in sides):
                said = " x ".join(map(str, sides[:2]))
                yield f"{layer}: {said}, no multiples of {BLOCK}: taken all the same, and fails"


def _dtype(data: Mapping[str, Any], text: str, where: str) -> str:
    """Return the dtype of what no converter takes."""
    said = data.get("training", {}).get("mixed_precision_param", "bfloat16")
    found = re.search(r"mixed_precision_param\s*=\s*['\"](\w+)", text, re.IGNORECASE)
    return one_of(f"{where}: mixed_precision_param", found[1] if found else said, DTYPES)
