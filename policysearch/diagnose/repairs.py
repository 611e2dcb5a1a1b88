"""The changes that may repair a policy: single ones, and groups that the evidence names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from policysearch.diagnose.evidence import Cause, Evidence
from policysearch.formats import Rounding, format_named
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer, with_accumulator
from policysearch.policy.scaling import Scaling
from policysearch.space.target import as_run, differences
from policysearch.train.origin import Link

SCALES = (2.0**4, 2.0**8, 2.0**10, 2.0**13, 2.0**16)
"""Fixed loss scales that are tried, beside a dynamic one."""

LAYERS_AT_MOST = 16
"""So many layers are widened one by one, those of the evidence first."""

PRODUCTS = ("matmul", "conv2d", "conv3d", "bias")
"""Ops that layers stand for: widening one of them everywhere is no small change."""


ROUNDS = 8
"""So often what is not finite is looked for anew behind what was widened."""


@dataclass(frozen=True)
class Repair:
    """A change to a policy, in words, and the policy after it.

    `rank` sorts those that leave as much work in low precision: those the cause calls for first.
    `apart`: it gives all of the low precision up, and is tried last. Where the policy is written as
    a target runs it, `was` is the failing one written so.
    """

    what: str
    policy: Policy
    rank: int = 1
    apart: bool = False
    was: Policy | None = None


@dataclass(frozen=True)
class LeftOut:
    """A change that a target undoes, in words, and what it does instead."""

    what: str
    why: str


def repairs_of(evidence: Evidence, graph: Graph) -> list[Repair]:
    """Return the changes to try for a failed policy, of which `graph` is the step; each once."""
    policy, cause = evidence.policy, evidence.cause
    found = [
        *_scales(policy, cause),
        *_sums(policy, cause),
        *_updates(policy, cause),
        *_chain_repairs(policy, evidence),
        *_ops(policy, graph, cause),
        *_layers(policy, evidence),
        *_formats(policy),
    ]
    return _once([repair for repair in found if repair.policy.digest != policy.digest])


def followed(
    policy: Policy,
    lost: Callable[[Policy], Sequence[Link]],
    near: Callable[[Policy], Sequence[Link]],
) -> Iterator[Repair]:
    """Yield the change that widens what is not finite, and what then is not, until nothing is.

    One overflow hides the next, and what divides by zero needs its divisor wide as well. `lost`
    gives the chain to the first such value of a policy, `near` the values that come close to it.
    """
    wide, places, last = policy, dict[tuple[str, str], None](), 1
    for _ in range(ROUNDS):
        chain = lost(wide)
        if not chain:
            break
        last = 2 * last if (chain[-1].op, chain[-1].layer) in places else 1
        places |= dict.fromkeys((link.op, link.layer) for link in chain[-last:])
        _, wide = _wide_at(policy, places)
    else:
        return
    if places:
        places |= dict.fromkeys((link.op, link.layer) for link in near(wide))
        what, wide = _wide_at(policy, places)
        yield Repair(f"{what} in float32", wide, 0)


def _wide_at(policy: Policy, places: Iterable[tuple[str, str]]) -> tuple[str, Policy]:
    """Return what is at these places, (op, layer), and the policy with it in float32."""
    layers = list(dict.fromkeys(layer for _, layer in places if layer in dict(policy.layers)))
    inside = [name for name in layers if name]
    ops = list(dict.fromkeys(op for op, layer in places if layer not in inside))
    wide = with_ops_wide(with_layers_in(policy, inside, "float32"), ops)
    return ", ".join((*inside, *ops)), wide


def joined(first: Repair, evidence: Evidence, graph: Graph) -> Iterator[Repair]:
    """Yield `first`, after which `graph` is the step, together with every other change."""
    after = replace(evidence, policy=first.policy)
    for second in repairs_of(after, graph):
        if not second.apart:
            what = f"{first.what}, and {second.what}"
            yield replace(second, what=what, rank=max(first.rank, second.rank))


def kept_there(
    policy: Policy, repairs: Sequence[Repair], model: Model, target: str
) -> tuple[list[Repair], list[LeftOut]]:
    """Return the repairs as `target` runs them, and those that it undoes, the called for first.

    Where it runs `policy` itself otherwise than it says, that is not where the policy trains, and
    all are kept as they are.
    """
    if differences(policy, model, target):
        return list(repairs), []
    failing, kept, undone = as_run(policy, model, target), list[Repair](), list[LeftOut]()
    for repair in _once(sorted(repairs, key=lambda repair: repair.rank)):
        running = as_run(repair.policy, model, target)
        unlike = running != repair.policy and differences(repair.policy, model, target)
        if unlike and running.digest == failing.digest:
            undone.append(LeftOut(repair.what, unlike[0]))
        else:
            kept.append(replace(repair, policy=running, was=failing) if unlike else repair)
    return _once(kept), undone


def _once(repairs: Iterable[Repair]) -> list[Repair]:
    """Return each policy once, in the words of the change that the cause calls for most."""
    first: dict[str, Repair] = {}
    for repair in repairs:
        known = first.setdefault(repair.policy.digest, repair)
        if repair.rank < known.rank:
            first[repair.policy.digest] = repair
    return list(first.values())


def with_ops_wide(policy: Policy, ops: Iterable[str]) -> Policy:
    """Return the policy with these ops in float32."""
    wanted = [op for op in dict.fromkeys(ops) if op not in policy.fp32_ops]
    return replace(
        policy,
        low_precision_ops=tuple(op for op in policy.low_precision_ops if op not in wanted),
        promote_ops=tuple(op for op in policy.promote_ops if op not in wanted),
        fp32_ops=(*policy.fp32_ops, *wanted),
    )


def with_layers_in(policy: Policy, names: Iterable[str], format: str) -> Policy:
    """Return the policy with these layers in a format; where their parameters lie stays."""
    layers = dict(policy.layers)
    changed = {
        name: uniform_layer(format, param=layers[name].param, accumulator=layers[name].accumulator)
        for name in names
        if name in layers and layers[name].compute != format
    }
    return policy.with_layers(changed)


def _scales(policy: Policy, cause: Cause) -> Iterator[Repair]:
    calls = cause.kind in ("loss scale", "never leaves skipping")
    rank = int(not calls and (cause.kind != "underflow" or cause.role == "fprop"))
    for scale in SCALES:
        changed = replace(policy, loss_scale=LossScale("fixed", scale))
        yield Repair(f"loss scale 2^{scale.hex().split('p')[1].lstrip('+')}", changed, rank)
    dynamic = replace(policy, loss_scale=LossScale("dynamic", 2.0**10))
    yield Repair("dynamic loss scale from 2^10", dynamic, rank)
    if policy.loss_scale.kind != "none":
        yield Repair("no loss scale", replace(policy, loss_scale=LossScale()), rank)
    if policy.scaling.recipe in ("none", "delayed") and _is_narrow(policy):
        current = replace(policy, scaling=Scaling("current"))
        yield Repair("tensors scaled to their own largest", current, int(cause.kind != "underflow"))


def _sums(policy: Policy, cause: Cause) -> Iterator[Repair]:
    """Yield products that sum in float32, where some do not."""
    wide = with_accumulator(policy, "float32")
    if wide != policy:
        yield Repair("products that sum in float32", wide, int(cause.kind != "rounding"))


def _updates(policy: Policy, cause: Cause) -> Iterator[Repair]:
    swamped = 0 if cause.kind in ("swamped updates", "decay") else 2
    state = 0 if cause.kind == "state" else 2
    if policy.optimizer_state != "float32":
        wide = replace(policy, optimizer_state="float32", optimizer_order="fused")
        yield Repair("optimizer state in float32", wide, state)
    if policy.optimizer_order != "fused" or policy.optimizer_scalars != "float32":
        fused = replace(policy, optimizer_order="fused", optimizer_scalars="float32")
        yield Repair("the update in one kernel, float32 inside", fused, max(state, 1))
    if not policy.master_weights:
        masters = replace(policy, master_weights=True)
        yield Repair("float32 master weights", masters, swamped)
        if policy.optimizer_state != "float32":
            both = replace(masters, optimizer_state="float32", optimizer_order="fused")
            yield Repair("float32 master weights and optimizer state", both, state)
        chance = replace(policy.rounding, update=Rounding("stochastic"))
        yield Repair("updates rounded by chance", replace(policy, rounding=chance), swamped + 1)


def _chain_repairs(policy: Policy, evidence: Evidence) -> Iterator[Repair]:
    """Yield what the chain names: its last op, its ops, its layers, and all of these together."""
    if evidence.cause.role == "update":
        return
    chain = evidence.cause.chain or ()
    last = chain[-1:]
    rounded = [row for row in evidence.grown if row.after > 0.05][:3]
    named_ops = list(dict.fromkeys([link.op for link in chain]))
    for links in (last, chain[-2:], chain[-4:], chain):
        ops = list(dict.fromkeys(link.op for link in links))
        layers = [n for n in dict.fromkeys(link.layer for link in links) if n]
        if ops:
            yield Repair(f"{', '.join(ops)} in float32", with_ops_wide(policy, ops), 0)
        if layers:
            wide = with_layers_in(policy, layers, "float32")
            yield Repair(f"{', '.join(layers)} in float32", wide, 0)
            both = with_ops_wide(wide, ops)
            yield Repair(f"{', '.join((*layers, *ops))} in float32", both, 0)
    beyond = [row for row in evidence.beyond if row.role == "fprop"]
    if beyond:
        ops = list(dict.fromkeys(row.op for row in beyond))
        layers = [n for n in dict.fromkeys(row.layer for row in beyond) if n]
        wide = with_layers_in(policy, layers, "float32")
        yield Repair(f"{', '.join(layers)} in float32", wide, 0)
        yield Repair(f"{', '.join(ops)} in float32", with_ops_wide(policy, ops), 0)
        adds = [op for op in ops if op not in PRODUCTS]
        both = with_ops_wide(wide, adds)
        yield Repair(f"{', '.join((*layers, *adds))} in float32", both, 0)
    blocks = {link.layer.rpartition(".")[0] for link in chain} - {""}
    for block in sorted(blocks):
        inside = [name for name, _ in policy.layers if name.startswith(f"{block}.")]
        yield Repair(
            f"block {block} in float32", with_layers_in(policy, [*inside, block], "float32"), 0
        )
    if rounded:
        ops = list(dict.fromkeys([*(row.op for row in rounded), *named_ops]))
        yield Repair(f"{', '.join(ops)} in float32", with_ops_wide(policy, ops), 0)
    if policy.norm_inner != "float32":
        yield Repair("norms in float32 inside", replace(policy, norm_inner="float32"), 0)


def _ops(policy: Policy, graph: Graph, cause: Cause) -> Iterator[Repair]:
    used = dict.fromkeys(node.source for node in graph.nodes if node.role == "fprop")
    low = [op for op in used if op in policy.low_precision_ops or op in policy.promote_ops]
    for op in low:
        yield Repair(
            f"{op} in float32",
            with_ops_wide(policy, [op]),
            int(op != cause.op or cause.role == "update"),
        )


def _layers(policy: Policy, evidence: Evidence) -> Iterator[Repair]:
    first = [evidence.cause.layer, *(link.layer for link in reversed(evidence.cause.chain))]
    low = [name for name, formats in policy.layers if formats.compute != "float32"]
    order = [name for name in dict.fromkeys([*first, *low]) if name in low]
    for name in order[:LAYERS_AT_MOST]:
        shown = name or "what the net computes outside its layers"
        rank = int(name != evidence.cause.layer or evidence.cause.role == "update")
        old = policy.layer(name)
        if evidence.cause.role in ("dgrad", "wgrad"):
            wide = policy.with_layers({name: replace(old, grad="float32", wgrad="float32")})
            yield Repair(f"gradients of {shown} in float32", wide, rank)
        if _has_bfloat16(policy) and old.compute != "bfloat16":
            half = with_layers_in(policy, [name], "bfloat16")
            yield Repair(f"{shown} in bfloat16", half, rank)
        yield Repair(f"{shown} in float32", with_layers_in(policy, [name], "float32"), rank)


def _formats(policy: Policy) -> Iterator[Repair]:
    low = [name for name, formats in policy.layers if formats.compute != "float32"]
    if _is_narrow(policy):
        wide = {n: _gradients_wide(policy.layer(n)) for n in low}
        yield Repair("gradients in bfloat16", policy.with_layers(wide), 1)
    layers = with_layers_in(policy, low, "bfloat16")
    bf16 = replace(layers, loss_scale=LossScale(), scaling=Scaling())
    yield Repair("bfloat16 everywhere, if your device has it", bf16, 1, apart=True)


def _gradients_wide(layer: LayerPolicy) -> LayerPolicy:
    return replace(layer, grad="bfloat16", wgrad="bfloat16")


def _has_bfloat16(policy: Policy) -> bool:
    """Return whether what the policy runs on has bfloat16 for certain."""
    return any("bfloat16" in (layer.compute, layer.output) for _, layer in policy.layers)


def _is_narrow(policy: Policy) -> bool:
    formats = {name for _, layer in policy.layers for name in (layer.compute, layer.grad)}
    return any(format_named(name).bits < 16 for name in formats)


def low_work(graph: Graph) -> float:
    """Return the operations of a step weighted by the bits below float32 of what they give.

    Products count by their widest operand. It orders repairs: none is a time.
    """
    total = 0.0
    for node in graph.nodes:
        if node.op.kind == "source" or node.op.name == "cast" or node.role == "update":
            continue
        shapes = [i.shape for i in graph.inputs_of(node)]
        formats: Sequence[str] = [node.format]
        if node.op.kind == "gemm":
            formats = [i.format for i in graph.inputs_of(node)[:2]]
        bits = max(format_named(name).bits for name in formats)
        total += node.op.flops(shapes, node.shape, node.attributes) * (1.0 - min(bits, 32) / 32.0)
    return total
