"""Scripts that ask Apex, MindSpore, Keras or FSDP2 for one precision of a whole run.

They are parsed; nothing in them is run. A call whose word is made when the script runs is told as
not read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from policysearch.export.apex import NAMES
from policysearch.export.levels import LISTS, scale_traps
from policysearch.export.reading import Given, Reading, literal
from policysearch.files import syntax_of
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.values import InputError


@dataclass(frozen=True)
class Asked:
    """The calls that choose, where their word stands, the usual one, and the preset of each."""

    calls: tuple[str, ...]
    keyword: str
    place: int
    usual: str
    presets: Mapping[str, str]


DTYPES = {name: name for name in ("float32", "float16", "bfloat16")}
WHOLE: Mapping[str, Asked] = MappingProxyType(
    {
        "apex": Asked(
            ("initialize",), "opt_level", 2, "O1", {f"O{n}": f"apex.O{n}" for n in range(4)}
        ),
        "mindspore": Asked(
            ("auto_mixed_precision", "build_train_network", "Model"),
            "amp_level",
            1,
            "O0",
            {word: f"mindspore.{word}" for word in ("O0", "O1", "O2", "O3", "auto")},
        ),
        "keras": Asked(
            ("set_global_policy", "set_dtype_policy"),
            "policy",
            0,
            "float32",
            {f"mixed_{name}": name for name in ("float16", "bfloat16")} | {"float32": "float32"},
        ),
        "fsdp2": Asked(("MixedPrecisionPolicy",), "param_dtype", 0, "float32", DTYPES),
    }
)
KERAS_SCALE = LossScale("dynamic", 2.0**15, growth_interval=2000, rule="keras.LossScaleOptimizer")
REGISTERED = dict(zip(("half", "float", "promote"), LISTS, strict=True))
"""The list of a policy by what Apex registers a function as."""


def whole_run_reading(target: str, text: str, model: Model, where: str) -> Reading:
    """Return what a script that calls one of WHOLE gives the layers of `model`.

    Raises InputError, beginning with `where`, for a script that calls none of them.
    """
    asked, tree = WHOLE[target], syntax_of(text, where, "a Python file")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [x for x in calls if ast.unparse(x.func).rpartition(".")[2] in asked.calls]
    if not named:
        said = f"{where}: no table LAYERS, and no call of {', '.join(asked.calls)}"
        raise InputError(f"{said}; expected an exported file, or a script that trains so")
    made = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    known = {x.id: node.value for node in made for x in node.targets if isinstance(x, ast.Name)}
    chosen, unread = None, []
    for call in named:
        word = _word(call, asked, known)
        if word not in asked.presets:
            unread.append(f"line {call.lineno}: {asked.keyword} of {ast.unparse(call)}")
        elif chosen is None:
            chosen = call, word
        elif word != chosen[1]:
            unread.append(f"line {call.lineno}: {ast.unparse(call)} beside line {chosen[0].lineno}")
    call, word = chosen or (named[0], asked.usual)
    policy = preset(asked.presets[word], model.layer_names)
    policy, more = _script_policy(policy, target, call, calls)
    rule = f"{ast.unparse(call.func)}, line {call.lineno}"
    given = tuple(Given(name, name, rule, row) for name, row in policy.layers)
    traps = tuple(scale_traps(given, policy.loss_scale))
    policy = replace(policy, name=f"imported from {where}")
    return Reading(policy, given, traps=traps, unread=(*unread, *more))


def _word(call: ast.Call, asked: Asked, known: Mapping[str, ast.expr]) -> str:
    """Return the word of a call: a constant, or the last part of a name; "" where it is made."""
    rows = [x.value for x in call.keywords if x.arg == asked.keyword]
    node = next(iter([*rows, *call.args[asked.place : asked.place + 1]]), None)
    if node is None:
        return asked.usual
    node = known.get(node.id, node) if isinstance(node, ast.Name) else node
    if isinstance(node, ast.Call) and node.args:  # Policy("mixed_float16")
        node = node.args[0]
    return node.attr if isinstance(node, ast.Attribute) else str(literal(node) or "")


def _script_policy(
    policy: Policy, target: str, call: ast.Call, calls: list[ast.Call]
) -> tuple[Policy, list[str]]:
    """Return the policy with what else the script says, and lines for what is not read of that."""
    said = {str(x.arg): x.value for x in call.keywords}
    if target == "keras" and any(row.compute == "float16" for _, row in policy.layers):
        return replace(policy, loss_scale=KERAS_SCALE), []
    if target == "fsdp2":
        reduced = said.get("reduce_dtype")
        word = reduced.attr if isinstance(reduced, ast.Attribute) else "float32"
        return replace(policy, all_reduce=DTYPES.get(word, "float32"), loss_scale=LossScale()), []
    if target != "apex":
        return policy, []
    scale = literal(said.get("loss_scale", ast.Constant(None)))
    if isinstance(scale, int | float) and scale > 0:
        policy = replace(policy, loss_scale=LossScale("fixed", float(scale)))
    placed: dict[str, Any] = {op: name for name in LISTS for op in getattr(policy, name)}
    unread = []
    for line, kind, function in _registrations(calls):
        ops = [op for op in NAMES if function in {x.rpartition(".")[2] for x in NAMES[op]}]
        placed |= dict.fromkeys(ops, REGISTERED[kind])
        if not ops:
            unread.append(f"line {line}: {function}: no op here has this name")
    lists: Any = {name: tuple(op for op in placed if placed[op] == name) for name in LISTS}
    return replace(policy, **lists), unread


def _registrations(calls: list[ast.Call]) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the kind and the name of each function that is registered."""
    for call in calls:
        words = ast.unparse(call.func).rpartition(".")[2].split("_")
        if words[0] == "register" and words[-1] == "function" and len(words) == 3:
            function = literal(call.args[1]) if len(call.args) > 1 else None
            if words[1] in REGISTERED and isinstance(function, str):
                yield call.lineno, words[1], function
