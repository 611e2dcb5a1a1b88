"""Export to qwix: a rule for every linear in FP8, by its whole path, beside flax's dtypes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policysearch.export.levels import BASE, Levels, fixed_scale
from policysearch.export.reading import (
    DEFAULT_RULE,
    About,
    Given,
    Reading,
    expression,
    literal,
    policy_of,
    unmatched,
)
from policysearch.files import syntax_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import normal
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.products import HYBRID, Source
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError

TEMPLATE = '''\
$head
#
#     model = apply_policy(model, inputs)     # an nnx module; inputs of any batch
#     of = nnx.DiffState(0, nnx.Param)        # train these alone
#     grads = nnx.grad(loss_of, argnums=of)(model, inputs, targets)
#
# The first rule that matches the whole path wins; one without a weight_qtype is none. Products of
# the backward pass read what the forward pass quantised.

import re

import jax.numpy as jnp
from flax import nnx

# module: (dtype it computes in, dtype of its parameters). A module in FP8 has dtype float32: qwix
# divides by the scale in it, and bfloat16 would round twice. The next module rounds its result.
LAYERS = $layers

# layers that may be functions in the net: they run as the policy says in what they are given
FUNCTIONS = $functions
OTHERWISE = "; make modules of its functions, or strict=False lets them run in what they are given"

LOSS_SCALE = $loss_scale


def rules():
    """Return a rule of qwix for every module in FP8: one scale of a tensor, E5M2 for gradients."""
    import qwix

    low = [name for name, (compute, _) in LAYERS.items() if compute == "float8_e4m3fn"]
    return [
        qwix.QtRule(
            module_path=re.escape(name.replace(".", "/")),
            weight_qtype=jnp.float8_e4m3fn,
            act_qtype=jnp.float8_e4m3fn,
            bwd_qtype=jnp.float8_e5m2,
            disable_channelwise_axes=True,
        )
        for name in low
    ]


def apply_policy(model, *inputs, strict=True):
    """Return the model with dtypes set and FP8 modules quantised.

    Raises ValueError where a module with parameters is unknown to the policy, a rule matches
    nothing, or a layer of the policy is missing, unless not `strict`: a function that is none of
    FUNCTIONS runs in what it is given, not as the policy says.
    """
    import qwix

    there = {".".join(map(str, path)): module for path, module in nnx.iter_modules(model)}
    if strict and (missing := [name for name in LAYERS if name not in {*there, *FUNCTIONS}]):
        raise ValueError(f"model: layers {missing} are of the policy and not in it{OTHERWISE}")
    for name, module in there.items():
        held = [x for x in vars(module).values() if isinstance(x, nnx.Param)]
        if held and name not in LAYERS:
            raise ValueError(f"model: {name!r} has parameters and is unknown to the policy")
        if name in LAYERS:
            compute = LAYERS[name][0]
            module.dtype = jnp.dtype("float32" if compute == "float8_e4m3fn" else compute)
    provider = qwix.QtProvider(rules())
    made = qwix.quantize_model(model, provider, *inputs)
    if unused := provider.get_unused_rules():
        raise ValueError(f"model: {[rule.module_path for rule in unused]} match nothing in it")
    return made
'''

LOW = replace(uniform_layer("float8_e4m3fn"), output="float32", wgrad="float32")
"""Its results are as wide as qwix computes its scales: the next layer rounds them."""
SHIFTED = Scaling("shifted")
WIDE = ("bfloat16", "float32")


class _Rules(Levels):
    """Levels with linears in FP8."""

    def level(self, formats: LayerPolicy, masters: bool) -> LayerPolicy:
        narrow = format_named(formats.compute).bits == 8 and formats.output in WIDE
        return LOW if narrow else super().level(formats, masters)

    def runs(self, policy: Policy, model: Model) -> Policy:
        running, wide = super().runs(policy, model), uniform_layer("bfloat16")
        layers = tuple(
            (name, wide if row == LOW and model.layer_types.get(name) != "Linear" else row)
            for name, row in running.layers
        )
        low = any(row == LOW for _, row in layers)
        return replace(running, layers=layers, scaling=SHIFTED if low else Scaling())

    def read(self, text: str, model: Model, where: str) -> Reading:
        if not re.search(r"^LAYERS = ", text, re.MULTILINE) and (rules := [*_rules(text)]):
            return _read_rules(rules, model, where)
        reading = super().read(text, model, where)
        low = any(row.formats == LOW for row in reading.given)
        scaling = SHIFTED if low else Scaling()
        return replace(reading, policy=replace(reading.policy, scaling=scaling))

    def _given(self, name: str, rows: Mapping[str, Any], where: str) -> Given:
        if rows.get(name) == ("float8_e4m3fn", "float32"):
            return Given(name, name, f"LAYERS[{name!r}]", LOW)
        return super()._given(name, rows, where)


KINDS = ("QtRule", "QuantizationRule")
TILE = 128
"""The tile of a scale that a policy has here: other tiles are read as this one."""


def _rules(text: str) -> Iterator[dict[str, Any]]:
    """Yield the constants of each rule that is written in a file of Python, in its order.

    A dtype is its last word, a name at the top of the file what it was given. A path that is made
    when the file runs is an expression.
    """
    try:
        tree = syntax_of(text, "", "rules")
    except InputError:
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [node for node in tree.body if isinstance(node, ast.Assign)]
    known = {x.id: node.value for node in made for x in node.targets if isinstance(x, ast.Name)}
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if ast.unparse(call.func).rpartition(".")[2] in KINDS:
            rows = {str(row.arg): row.value for row in call.keywords}
            yield {name: _constant(name, value, known) for name, value in rows.items()}


def _constant(name: str, node: ast.expr, known: Mapping[str, ast.expr]) -> Any:
    node = known.get(node.id, node) if isinstance(node, ast.Name) else node
    value = literal(node)
    if value is not None or isinstance(node, ast.Constant):
        return value
    return node if name == "module_path" else ast.unparse(node).rpartition(".")[2]


def _read_rules(rules: Sequence[dict[str, Any]], model: Model, where: str) -> Reading:
    """Return what rules give the layers of `model`: a path is matched whole, the first rule wins.

    Rules say no dtype of modules: what none takes is float32 here.
    """
    said = [row.get("module_path") or ".*" for row in rules]
    words = [ast.unparse(x) if isinstance(x, ast.expr) else str(x) for x in said]
    named = [f"rule {number} ({word})" for number, word in enumerate(words)]
    later = [name for name, x in zip(named, said, strict=True) if isinstance(x, ast.expr)]
    paths = [_path_of(row, f"{where}: {name}") for row, name in zip(rules, named, strict=True)]
    traps = ["no dtypes of modules in the rules: those are set in the model; read as float32"]
    made = [_formats(row, name, traps) for row, name in zip(rules, named, strict=True)]
    matched, given = dict.fromkeys(named, 0), []
    for layer in model.layer_names:
        path, kind = layer.replace(".", "/"), model.layer_types.get(layer)
        there = zip(named, made, paths, strict=True)
        fit = [
            (name, formats)
            for name, formats, pattern in there
            if kind == "Linear" and pattern is not None and pattern.fullmatch(path)
        ]
        for name, _ in fit:
            matched[name] += 1
        rule, formats = fit[0] if fit else (DEFAULT_RULE, None)
        given.append(Given(layer, path, rule, formats or LayerPolicy()))
    policy = policy_of(given, model, f"imported from {where}", BASE, bias="rounded")
    fixed = [name for name in named if name not in later]
    unread = tuple(f"{name}: its path is made when the script runs" for name in later)
    idle = unmatched(fixed, given, matched)
    return Reading(normal(policy), tuple(given), idle, tuple(traps), unread)


def _path_of(row: Mapping[str, Any], where: str) -> re.Pattern[str] | None:
    """Return what the paths of a rule match, None where the rule is for no products of linears."""
    ops = row.get("op_names") or ("einsum",)
    if not isinstance(ops, (str, list, tuple)) or not {"dot_general", "einsum"} & {*map(str, ops)}:
        return None
    given = row.get("module_path") or ".*"
    if isinstance(given, ast.expr):
        return None
    return expression(str(given), where)


def _formats(row: Mapping[str, Any], name: str, traps: list[str]) -> LayerPolicy | None:
    """Return the formats of a linear under a rule, None for those of its module.

    What the forward pass quantised is what the backward pass reads.
    """
    given = (row.get(f"{key}_qtype") for key in ("weight", "act", "bwd"))
    weight, read, grad = (None if each is None else str(each) for each in given)
    if weight is None:
        return None
    if read != weight or not {weight, grad or weight} <= {*HYBRID, "float4_e2m1fn"}:
        said = f"weights {weight}, inputs {read}, gradients {grad}"
        traps.append(f"{name}: {said}: no such product here; read as float32")
        return None
    scaling = Scaling("rowwise")
    if row.get("disable_channelwise_axes") is True:
        scaling = SHIFTED
    if tile := row.get("tile_size"):
        scaling = Scaling("blocks")
        if tile != TILE:
            traps.append(f"{name}: tiles of {tile} are read as tiles of {TILE}")
    copy: Source = "tensor" if scaling == SHIFTED else "forward"
    return replace(LOW, compute=weight, grad=grad or "float32", backward=copy, scaling=scaling)


_TARGET = _Rules(
    "qwix", TEMPLATE, ("float32", "float16", "bfloat16"), fixed_scale, stores=False, bias="rounded"
)

SUFFIX = ".py"
ABOUT = About(
    "a module to import: apply_policy(model, inputs), rules(); a file with QtRule(...) is read too",
    "per linear FP8 by one scale of a tensor, else per module float32, float16, bfloat16",
    "qwix 0.1.8 with flax 0.12.8 (run on a CPU, 2026-11)",
    "`verify --target qwix --python ENV`; products of the jaxpr in the tests",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
