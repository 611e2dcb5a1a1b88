"""Targets whose files give every layer one dtype: what they run and lose, how they are read."""

from __future__ import annotations

import ast
import pprint
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from string import Template
from typing import Any, Literal

from policysearch.export.reading import (
    DEFAULT_RULE,
    Given,
    Reading,
    brief_name,
    grouped,
    in_words,
    literal,
    policy_of,
)
from policysearch.files import syntax_of
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import shortest
from policysearch.policy.policy import AS_STORED, LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import SMALLEST_BATCH, trace_forward
from policysearch.values import InputError, one_of, printable

BASE = "bfloat16"
"""The preset whose op lists these targets have: every op of a layer runs in the layer's dtype."""

LISTS = ("low_precision_ops", "fp32_ops", "promote_ops")
NAMED = 6
"""So many ops are named in a line."""

LAYER_PARTS = tuple(part.name for part in fields(LayerPolicy))


@dataclass(frozen=True)
class Levels:
    """A target of dtypes per layer.

    `template` is its file: a dollar sign marks what `export` fills in. `scale` returns the loss
    scale that the target has of one that is asked. `stores` says whether a layer may store what it
    computes in, `bias` whether a product is rounded before its bias is added.
    """

    name: str
    template: str
    dtypes: tuple[str, ...]
    scale: Callable[[LossScale], LossScale]
    stores: bool = True
    bias: Literal["fused", "rounded"] = "fused"

    def level(self, formats: LayerPolicy, masters: bool) -> LayerPolicy:
        """Return the nearest formats of a layer: one dtype, never narrower than the result's."""
        wanted = formats.compute if formats.compute in self.dtypes else formats.output
        if wanted not in self.dtypes or bits_of(formats.output) > bits_of(wanted):
            wanted = formats.output if formats.output in self.dtypes else "float32"
        stored = wanted if self.stores and not masters and formats.param == wanted else "float32"
        return uniform_layer(wanted, param=stored)

    def runs(self, policy: Policy, model: Model) -> Policy:
        """Return the policy that the file obeys when it is given this one."""
        layers = tuple((n, self.level(row, policy.master_weights)) for n, row in policy.layers)
        low = any(row.param != "float32" for _, row in layers)
        return replace(
            plain(policy),
            layers=layers,
            bias=self.bias,
            master_weights=not low,
            optimizer_state=AS_STORED if low else "float32",
            loss_scale=self.scale(policy.loss_scale),
        )

    def losses(self, policy: Policy, model: Model) -> tuple[str, ...]:
        """Return what the file does not do as the policy says, one line each."""
        policy.check_layers(model.layer_names)
        return tuple(field_losses(policy, self.runs(policy, model), self.name))

    def offers(self, formats: LayerPolicy, layer_type: str) -> bool:
        """Return whether a layer runs in these formats."""
        return formats == self.level(formats, formats.param == "float32")

    def export(self, policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
        """Return the file: its tables, and what applies them."""
        lines, running = self.losses(policy, model), self.runs(policy, model)
        rows = {name: (row.compute, row.param) for name, row in running.layers}
        scale = {x.name: getattr(running.loss_scale, x.name) for x in fields(LossScale)}
        return Template(self.template).substitute(
            head=head(policy, notes, lines, self.name),
            layers=pprint.pformat(rows, sort_dicts=False, width=96),
            loss_scale=pprint.pformat(scale, sort_dicts=False, width=96),
            **self.more(running, model),
        )

    def more(self, running: Policy, model: Model) -> dict[str, str]:
        """Return what else the template leaves open, by its word."""
        return {"functions": pprint.pformat(functions_of(running, model), width=96)}

    def read(self, text: str, model: Model, where: str) -> Reading:
        """Return what the tables of such a file give the layers of `model`."""
        tables = constants(text, where, ("LAYERS", "LOSS_SCALE"))
        rows = tables["LAYERS"]
        given = tuple(self._given(name, rows, where) for name in model.layer_names)
        low = any(row.formats.param != "float32" for row in given)
        policy = policy_of(
            given,
            model,
            f"imported from {where}",
            BASE,
            bias=self.bias,
            master_weights=not low,
            optimizer_state=AS_STORED if low else "float32",
            loss_scale=LossScale(**tables["LOSS_SCALE"]),
        )
        strangers = (name for name in rows if name not in model.layer_names)
        unused = tuple(f"{name}: never matches: no layer of the model" for name in strangers)
        return Reading(policy, given, unused, tuple(scale_traps(given, policy.loss_scale)))

    def _given(self, name: str, rows: Mapping[str, Any], where: str) -> Given:
        if name not in rows:
            return Given(name, name, DEFAULT_RULE, LayerPolicy())
        try:
            compute, stored = rows[name]
            formats = uniform_layer(one_of("dtype", compute, self.dtypes), param=stored)
        except (InputError, TypeError, ValueError) as error:
            raise InputError(f"{where}: LAYERS[{name!r}]: {error}") from None
        return Given(name, name, f"LAYERS[{name!r}]", formats)


def functions_of(running: Policy, model: Model) -> list[str]:
    """Return the layers without parameters that run as the policy has it in what they are given.

    Where a net calls a function in the place of such a layer there is nothing to set.
    """
    here = [name for name in model.layer_names if not model.parameters_of(name)]
    if not here:
        return []
    nodes = apply_policy(trace_forward(model, SMALLEST_BATCH), running).nodes
    cast = {x.layer for x in nodes if any(nodes[i].op.name == "cast" for i in x.inputs)}
    return [name for name in here if name not in cast]


def one_dtype(policy: Policy) -> str:
    """Return the dtype of a whole run: a low one where some layer asks for it and none for another.

    bfloat16 where they ask for several, or for fewer bits.
    """
    computed = {row.compute for _, row in policy.layers} - {"tfloat32"}
    if computed <= {"float32"}:
        return "float32"
    return "float16" if computed <= {"float32", "float16"} else "bfloat16"


def fixed_scale(asked: LossScale) -> LossScale:
    """Return a fixed scale as it is, without a skip of its own, and none for any other."""
    if asked.kind != "fixed":
        return LossScale()
    return LossScale("fixed", asked.init_scale, skip_on_overflow=False)


def bits_of(name: str) -> int:
    """Return the bits of a format of this name."""
    return format_named(name).bits


def plain(policy: Policy, base: str = BASE) -> Policy:
    """Return the policy with all that no such file can say as frameworks have it by themselves.

    Its op lists are those of the preset `base`.
    """
    row = preset(base, ())
    lists = row.low_precision_ops, row.fp32_ops, row.promote_ops
    return Policy(policy.name, policy.layers, *lists, parallel=policy.parallel)


def scale_traps(given: Sequence[Given], scale: LossScale) -> Iterator[str]:
    """Yield a line where float16 is trained without a loss scale."""
    low = [row.layer for row in given if row.formats.compute == "float16"]
    if low and scale.kind == "none":
        yield f"{low[0]}: float16 ({len(low)} such layers) and no loss scale: gradients underflow"


def why_wide(layer: str, model: Model, target: str, multiple: int, other: str) -> str:
    """Return why a target that quantises linears leaves a layer alone, by its type or its sides.

    `other` for a linear where neither is against it; "" for a layer without a product of its own.
    """
    kind = model.layer_types.get(layer)
    shapes = [spec.shape for spec in model.parameters_of(layer) if len(spec.shape) > 1]
    if kind != "Linear":
        return f"{target} quantises linears alone" if shapes and kind != "Embedding" else ""
    for shape in shapes:
        if any(side % multiple for side in shape):
            sides = " x ".join(map(str, shape))
            return f"{target} wants multiples of {multiple}, and its weight is {sides}"
    return other


def field_losses(
    policy: Policy, running: Policy, target: str, why: Callable[[str], str] = lambda layer: ""
) -> Iterator[str]:
    """Yield a line for each field, layer and op in which the running policy is another.

    `why` returns why a layer that is asked below 16 bits runs wider, "" where that is not known.
    """
    for name, asked in policy.layers:
        wanted, made = shortest(asked), running.layer(name)
        parts = [x for x in LAYER_PARTS if getattr(wanted, x) != getattr(made, x)]
        if parts:
            ours = ", ".join(f"{x} {_word(getattr(made, x))}" for x in parts)
            theirs = ", ".join(_word(getattr(wanted, x)) for x in parts)
            least, ours_least = (
                min(sorted(x.operand_formats), key=bits_of) for x in (wanted, made)
            )
            wider = bits_of(least) < 16 <= bits_of(ours_least) and why(name)
            given = f"{target} does not compute it in {least} ({wider}); it " * bool(wider)
            yield f"layer {name}: {given}runs with {ours}, not {theirs}"
    yield from _list_losses(policy, running, target)
    for part in fields(Policy):
        if part.name in ("name", "version", "layers", "parallel", *LISTS):
            continue
        said, runs = getattr(policy, part.name), getattr(running, part.name)
        if said != runs:
            yield f"{part.name}: {_unlike(runs, said)}"
    if policy.parallel.summary:
        yield f"parallel: the training script has to set up {policy.parallel.summary}"


def _list_losses(policy: Policy, running: Policy, target: str) -> Iterator[str]:
    """Yield a line for each pair of op lists between which the running policy moves ops."""
    after = {op: name for name in LISTS for op in getattr(running, name)}
    for before in LISTS:
        for other in LISTS:
            ops = [op for op in getattr(policy, before) if after.get(op, before) == other != before]
            if ops:
                more = f" and {len(ops) - NAMED} more" if len(ops) > NAMED else ""
                yield (
                    f"{', '.join(ops[:NAMED])}{more}: {target} runs "
                    f"{'them' if len(ops) > 1 else 'it'} as one of {other}, not of {before}"
                )


def _word(part: object) -> str:
    return part if isinstance(part, str) else _said(part)


def _said(value: object) -> str:
    """Return a value on one line."""
    return " ".join(repr(value).split())


def _unlike(ours: object, theirs: object) -> str:
    """Return in what two values differ: of rows, such as a loss scale, the fields alone."""
    if not is_dataclass(ours) or type(ours) is not type(theirs):
        return f"{_said(ours)}, not {_said(theirs)}"
    pairs = ((x.name, getattr(ours, x.name), getattr(theirs, x.name)) for x in fields(ours))
    unlike = [f"{name} {_said(a)}, not {_said(b)}" for name, a, b in pairs if a != b]
    return "; ".join(unlike)


def head(
    policy: Policy, notes: Sequence[str], losses: Sequence[str], target: str, mark: str = "# "
) -> str:
    """Return comments that say what policy a file is of, the notes, and the losses."""
    said = [
        f"Written by policysearch for {target}. The policy asks for",
        in_words(policy),
        f"Its name: {brief_name(policy.name)}",
        "Its digest, by which `policysearch verify` knows it:",
        policy.digest,
        *notes,
    ]
    lost = ["What this file does not do as the policy says:"]
    lost += [f"  - {_one_line(line)}" for line in grouped(losses) or ("nothing",)]
    return "\n".join(mark + line for line in (*map(_one_line, said), *lost))


def _one_line(text: str) -> str:
    """Return `text` on one line, as it is seen: a name from a file must not end a comment."""
    return printable(" ".join(text.split()))


def constants(text: str, where: str, names: Sequence[str]) -> dict[str, Any]:
    """Return constants at the top of a Python file; nothing in it is run."""
    found: dict[str, Any] = {}
    for node in syntax_of(text, where, "an exported file").body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = literal(node.value)
    for name in names:
        if not isinstance(found.get(name), dict):
            raise InputError(f"{where}: no table {name}; expected an exported file, which has it")
    return found
