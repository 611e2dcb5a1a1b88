"""What passes do to a step, as text: the nodes that go and come, counts, modeled time and bytes."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from policysearch.cost.kernels import fuse
from policysearch.cost.price import StepPrice, interval_on, step_price
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.scaling import Scaling
from policysearch.report.step_cost import MIB
from policysearch.rewrite.cast_rules import cancel_casts, sink_casts
from policysearch.rewrite.policy_pass import policy_pass
from policysearch.rewrite.rules import Pass, apply_rules, node_lines
from policysearch.train.tasks import Task

IDLE = " (not done in training)"


def policy_passes(task: Task, model: Model, policy: Policy) -> tuple[Pass, ...]:
    """Return the passes that make the step of `task` under `policy`, and two that it leaves out.

    Those are the cast rules, which would change no bit of it. InputError where it does not fit.
    """
    policy.check_layers(model.layer_names)
    step = task.tracing(model, task.batch_size).float32
    passes = [policy_pass(step, replace(policy, scaling=Scaling()))]
    if policy.scaling.recipe != "none":
        whole, by_rule = policy_pass(step, policy), dict(passes[0].by_rule)
        scaled = tuple((rule, count) for rule, count in whole.by_rule if rule not in by_rule)
        products = sum(count for _, count in scaled)
        passes.append(Pass("scaling", products, passes[0].after, whole.after, by_rule=scaled))
    idle = apply_rules(passes[-1].after, (sink_casts, cancel_casts))[1]
    return (*passes, *(replace(rule, name=f"{rule.name}{IDLE}") for rule in idle))


def diff_of(passes: Sequence[Pass], device: str, stack: str) -> str:
    """Return the diff of the graph pass by pass.

    "-" is before a node that is gone, "+" before a new one; nodes are shown by what they read, for
    numbers move. The last pass groups nodes into the kernels that are priced, "&" before those of
    several. Times are shares of the step that the first pass found, modeled on `device` and
    `stack`. Raises InputError for an unknown name.
    """
    first = step_price(passes[0].before, device, stack)
    lines = [f"modeled on {device}, {stack}; times are shares of the step before all passes"]
    for rewrite in passes:
        lines += ["", *_counts(rewrite, first, device, stack), *_changes(rewrite)]
    trained = [rewrite for rewrite in passes if not rewrite.name.endswith(IDLE)][-1].after
    return "\n".join([*lines, "", *_fusion(trained, first), ""])


def _counts(rewrite: Pass, first: StepPrice, device: str, stack: str) -> Iterator[str]:
    before, after = (step_price(graph, device, stack) for graph in (rewrite.before, rewrite.after))
    yield (
        f"pass {rewrite.name}: {rewrite.matched} matched, {rewrite.changed} nodes changed, "
        f"{rewrite.casts_removed} casts removed"
    )
    if rewrite.by_rule:
        yield _by_rule(rewrite.by_rule)
    seconds = first.time.step_seconds
    low, high = (1 / factor for factor in reversed(interval_on(first.device)))
    yield (
        f"  nodes {len(rewrite.before.nodes)} to {len(rewrite.after.nodes)}, "
        f"modeled time {before.time.step_seconds / seconds:.3f} "
        f"to {after.time.step_seconds / seconds:.3f} "
        f"(times {low:.2f} to {high:.2f}), "
        f"peak {before.memory.peak_bytes / MIB:.4g} to {after.memory.peak_bytes / MIB:.4g} MiB"
    )


def _by_rule(counts: Iterable[tuple[str, int]]) -> str:
    return "  by rule: " + ", ".join(f"{rule} {count}" for rule, count in counts if count)


def _fusion(trained: Graph, price: StepPrice) -> Iterator[str]:
    """Yield what the fusion pass makes of the step on the stack of a price."""
    fused = fuse(trained, price.stack)
    nodes = sum(len(kernel.nodes) for kernel in fused.kernels)
    kernels = f"{nodes} nodes in {len(fused.kernels)} kernels, which are priced"
    yield f"pass fusion of {price.stack.name}: {kernels}"
    yield _by_rule(fused.by_rule)
    for kernel in fused.kernels:
        lead, others = kernel.lead, Counter(node.op.name for node in kernel.nodes)
        others[lead.op.name] -= 1
        inside = [f"{count} {op}" if count > 1 else op for op, count in others.items() if count]
        if inside:
            yield f"  & {lead.role} {lead.layer or '-'} {lead.op.name} with {', '.join(inside)}"


def _changes(rewrite: Pass) -> Iterator[str]:
    before, after = node_lines(rewrite.before), node_lines(rewrite.after)
    for line in list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]:
        if not line.startswith("@@"):
            yield f"  {line[0]} {line[1:]}"
