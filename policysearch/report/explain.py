"""A training step under a policy as text: every node, every cast, and the seven steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policysearch.formats import format_named
from policysearch.graph import Graph, Node
from policysearch.ops.catalogue import LOSS_OPS
from policysearch.policy.policy import Policy
from policysearch.report.operands import operand_table
from policysearch.report.text import aligned

STEPS = (
    "float32 parameters",
    "casts to low precision before low-precision ops",
    "loss in float32",
    "loss scale before backward",
    "low-precision gradients, their results cast to float32",
    "unscale",
    "finite check, then skip the update or update the parameters",
)
"""The seven steps of mixed-precision training, in order."""

COLUMNS = ("id", "step", "role", "layer", "op", "inputs", "shape", "format")


@dataclass(frozen=True)
class Step:
    """One of `STEPS` in one graph: its number, the nodes that do it, and why there are none."""

    number: int
    node_ids: tuple[int, ...]
    missing: str = ""


def explain(graph: Graph, policy: Policy, notes: Sequence[str] = ()) -> str:
    """Return the printout of `graph`, a training step to which `policy` has been applied.

    `notes` stand under the name of the policy.

    First the steps with the ids of the nodes that do them, then what every product reads, then
    one line per node.
    """
    steps = steps_of(graph, policy)
    numbers = {i: str(step.number) for step in steps for i in step.node_ids}
    rows = [COLUMNS, *(_row(graph, node, numbers.get(node.id, "")) for node in graph.nodes)]
    if any(node.line for node in graph.nodes):
        lines = ("your line", *(node.line or "-" for node in graph.nodes))
        rows = [(*row, line) for row, line in zip(rows, lines, strict=True)]
    return "\n".join(
        [
            f"policy {policy.name} ({policy.digest[:12]})",
            *notes,
            "",
            *(_step_line(graph, step) for step in steps),
            "",
            *operand_table(graph),
            "",
            *aligned(rows),
            "",
            _summary(graph),
            "",
        ]
    )


def steps_of(graph: Graph, policy: Policy) -> tuple[Step, ...]:
    """Return the seven steps with the nodes of `graph` that do them.

    Step 5 names each gradient cast to float32, step 7 the check and what replaces parameters.
    """
    scaled = "" if policy.loss_scale.kind != "none" else "the policy has no loss scale"
    masters = "" if policy.master_weights else "the policy has no float32 master weights"
    parameters = {node.id for node in graph.nodes if node.op.name == "parameter"}
    replaced = {new for old, new in graph.updates if old in parameters}
    tests: tuple[tuple[Callable[[Node], bool], str], ...] = (
        (lambda n: n.id in parameters and n.format == "float32", masters),
        (lambda n: n.role == "fprop" and _narrows(graph, n), "no layer runs in low precision"),
        (lambda n: n.op.name in LOSS_OPS and n.format == "float32", "the loss is in low precision"),
        (lambda n: n.op.name == "scale_loss", scaled),
        (lambda n: _widens_gradient(graph, n), "every gradient is computed in float32"),
        (lambda n: n.op.name == "unscale", scaled),
        (lambda n: n.op.name == "all_finite" or n.id in replaced, ""),
    )
    steps = []
    for number, (test, missing) in enumerate(tests, 1):
        # With scale 1 the multiplication is still traced; nothing is scaled by it.
        nodes = () if number in (4, 6) and scaled else tuple(n.id for n in graph.nodes if test(n))
        steps.append(Step(number, nodes, "" if nodes else missing))
    return tuple(steps)


def _bits(node: Node) -> int:
    form = format_named(node.format)
    return 1 + form.exponent_bits + form.mantissa_bits


def _narrows(graph: Graph, node: Node) -> bool:
    return node.op.converts and _bits(node) < _bits(graph.nodes[node.inputs[0]])


def _widens_gradient(graph: Graph, node: Node) -> bool:
    sums = node.source == "accumulate"
    if node.op.name != "cast" or node.format != "float32" or not (sums or node.role == "update"):
        return False
    value = graph.nodes[node.inputs[0]]
    while value.op.name == "cast":
        value = graph.nodes[value.inputs[0]]
    return value.role in ("dgrad", "wgrad")


def _step_line(graph: Graph, step: Step) -> str:
    head = f"step {step.number}: {STEPS[step.number - 1]}: "
    if step.missing or not step.node_ids:
        return f"{head}none ({step.missing})"
    nodes = ", ".join(_label(graph.nodes[i]) for i in step.node_ids)
    check = any(graph.nodes[i].op.name == "all_finite" for i in step.node_ids)
    if step.number == 7 and not check:
        return f"{head}no check, every step is taken: {nodes}"
    return head + nodes


def _label(node: Node) -> str:
    return f"[{node.id}] {node.name or node.op.name}"


def _row(graph: Graph, node: Node, step: str) -> tuple[str, ...]:
    op = f"{node.op.name} {node.name}" if node.name else node.op.name
    form = node.format
    if node.op.converts:
        form = f"{graph.nodes[node.inputs[0]].format} -> {form}"
    elif node.fused:
        form = f"{form} (fused)"
    shape = "x".join(map(str, node.shape)) or "scalar"
    return (
        str(node.id),
        step,
        node.role,
        node.layer or "-",
        op,
        " ".join(map(str, node.inputs)) or "-",
        shape,
        form,
    )


def _summary(graph: Graph) -> str:
    casts = [node for node in graph.nodes if node.op.converts]
    formats = sorted({node.format for node in graph.nodes})
    return f"{len(graph.nodes)} nodes, {len(casts)} casts, formats: {', '.join(formats)}"
