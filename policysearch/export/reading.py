"""What is read from a trainer's own file: module by module what it gives, and by which rule."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import preset
from policysearch.values import NO_LAYER, InputError

BASE = "torch.autocast.bfloat16"
"""The preset whose op lists a policy has that is read from a file without any."""

DEFAULT_RULE = "no rule"


def layer_name(name: str) -> str:
    """Return what lines call a layer, that of the name "" too."""
    return name or NO_LAYER


def literal(node: ast.expr) -> Any:
    """Return the constant that an expression is, tables of constants too; None for any other."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None  # TypeError: a key that cannot be one


def expression(pattern: Any, where: str) -> re.Pattern[str]:
    """Return a regular expression of a file, compiled; InputError for what is none."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"{where}: {error}; expected a regular expression") from None


def _nothing(policy: Policy, model: Model) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class About:
    """What is known of a target: what its file is, what it can say, and what was looked at.

    `says` names what differs from layer to layer, `checked` the version and the month of the
    sources or of the run, `how` what checks an exported file here. `staged`: names depend on the
    stage of a pipeline. `beside` returns the modules that the file names, by their files.
    """

    file: str
    says: str
    checked: str
    how: str
    staged: bool = False
    beside: Callable[[Policy, Model], Mapping[str, str]] = _nothing


@dataclass(frozen=True)
class Given:
    """What a file gives one layer of the model: `module` is the target's own name of it.

    `rule` is the rule of the file that decided, `DEFAULT_RULE` where none did.
    """

    layer: str
    module: str
    rule: str
    formats: LayerPolicy


@dataclass(frozen=True)
class Reading:
    """A trainer's file as a policy, and how that came about.

    `unused` has a line for each rule that matches no module, or only what earlier ones took;
    `traps` one for each known trap that the file steps into, `unread` for each part of it that may
    give layers something else and was not followed.
    """

    policy: Policy
    given: tuple[Given, ...]
    unused: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def policy_of(
    given: Sequence[Given], model: Model, name: str, base: str = BASE, **changes: object
) -> Policy:
    """Return the policy with these layers, and op lists and the rest as in the preset `base`.

    Layers that no row names are those of the base. `changes` are fields of the policy.
    """
    start = preset(base, model.layer_names)
    layers = dict(start.layers) | {row.layer: row.formats for row in given}
    made = replace(start, name=name, layers=tuple(layers.items()))
    return replace(made, **changes)  # type: ignore[arg-type]


def unmatched(
    rules: Sequence[str], given: Sequence[Given], matched: Mapping[str, int]
) -> tuple[str, ...]:
    """Return a line for each rule that decides nothing; `matched` counts what each would match."""
    deciding = {row.rule for row in given}
    lines = []
    for rule in dict.fromkeys(rules):
        if rule in deciding:
            continue
        count = matched.get(rule, 0)
        why = f"shadowed: earlier rules take all {count} it matches" if count else "never matches"
        lines.append(f"{rule}: {why}")
    return tuple(lines)


def json_object(text: str, where: str) -> dict[str, object]:
    """Return the JSON object in `text`; InputError, beginning with `where`, where it is none."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: {error}; expected JSON") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: {type(data).__name__}; expected a JSON object")
    return data


def yaml_object(text: str, where: str) -> dict[str, Any]:
    """Return the table in YAML; InputError, beginning with `where`, where it is none."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(f"{where}: pyyaml is not installed; expected pip install pyyaml") from None
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}; expected YAML") from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: {type(data).__name__}; expected a table in YAML")
    return data


KINDS, LONGEST_NAME = 4, 72
"""So many kinds of layers are said of a policy, and so much of its name."""


def said(formats: LayerPolicy) -> str:
    """Return the format that a layer computes in, and what of it is in others."""
    rest = {
        "results": formats.output,
        "gradients": formats.grad,
        "gradients of weights": formats.wgrad,
    }
    unlike = [f"{part} {name}" for part, name in rest.items() if name != formats.compute]
    return f"{formats.compute} ({', '.join(unlike)})" if unlike else formats.compute


def in_words(policy: Policy) -> str:
    """Return what a policy is, for whoever does not know its name: formats, loss scale, masters."""
    counts = Counter(said(row) for _, row in policy.layers).most_common()
    words = [f"{count} layers in {name}" for name, count in counts[:KINDS]]
    if more := counts[KINDS:]:
        words.append(f"{sum(count for _, count in more)} in {len(more)} other ways")
    scale = policy.loss_scale
    if scale.kind != "none":
        words.append(f"a {scale.kind} loss scale, first {scale.init_scale:g}")
    if any(row.param != "float32" for _, row in policy.layers):
        words.append(f"float32 masters {'kept' if policy.master_weights else 'not kept'}")
    return "; ".join(words)


def brief_name(name: str) -> str:
    """Return a name, the middle of a long one left out."""
    if len(name) <= LONGEST_NAME:
        return name
    half = LONGEST_NAME // 2 - 2
    return f"{name[:half]}...{name[-half:]}"


PARTS = ("compute", "output", "grad", "wgrad", "param")
"""What of a layer is a number format."""


def narrower(asked: Policy, running: Policy) -> Iterator[str]:
    """Yield a line for each format that a target runs with fewer bits than the policy asks."""
    for layer, wanted in asked.layers:
        made = running.layer(layer)
        for part in PARTS:
            before, after = getattr(wanted, part), getattr(made, part)
            if _is_narrower(after, before):
                yield f"layer {layer}: {part} is {after}, narrower than the {before} asked"
    for part in ("all_reduce", "optimizer_state"):
        before, after = getattr(asked, part), getattr(running, part)
        if "param" not in (before, after) and _is_narrower(after, before):
            yield f"{part}: {after}, narrower than the {before} asked"


def _is_narrower(after: str, before: str) -> bool:
    ours, theirs = format_named(after), format_named(before)
    return ours.mantissa_bits < theirs.mantissa_bits or ours.exponent_bits < theirs.exponent_bits


def grouped(lines: Sequence[str]) -> list[str]:
    """Return the lines with those that say one thing of several layers made one."""
    said: dict[str, list[str]] = {}
    for line in lines:
        layer, _, rest = line.partition(": ")
        of_layer = layer.startswith("layer ") and bool(rest)
        said.setdefault(rest if of_layer else line, []).append(layer if of_layer else "")
    made = []
    for text, layers in said.items():
        names = [layer_name(layer.removeprefix("layer ")) for layer in layers]
        if not any(layers):
            made.append(text)
        elif len(names) == 1:
            made.append(f"layer {names[0]}: {text}")
        else:
            listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            made.append(f"{len(names)} layers ({listed}): {text}")
    return made
