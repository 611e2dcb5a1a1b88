"""From the nodes of a step to the kernels a stack would launch for them.

Rules over a node and the lead of a kernel (`FUSIONS`) say what a stack fuses; one pass over the
nodes in their order then groups them, as compilers of graphs do (greedy, producer into consumer).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from policysearch.cost.memory import storage_of
from policysearch.cost.stacks import Stack
from policysearch.graph import Graph, Node, size
from policysearch.rewrite.patterns import Wanted
from policysearch.rewrite.patterns import node as fits

PHASES: Mapping[str, int] = MappingProxyType(
    {"input": 0, "fprop": 0, "dgrad": 1, "wgrad": 1, "update": 2}
)
"""By role: kernels of different phases are not fused."""

OF_GRADIENTS = ("all_finite", "global_norm", "amax")
"""Reductions that a pass over gradients leaves beside them."""

ACCUMULATOR = "value in an accumulator"
MERGED = "kernel of an update into another"
CELL = "op of a recurrent cell"
"""What else brings nodes into one kernel: `Node.fused`, stacks with a fused optimizer, and the
libraries of recurrent layers."""


@dataclass(frozen=True)
class Fusion:
    """A node that fits `joins` runs in the kernel of one it reads, called after one that fits
    `lead`, where the stack `allows` it (a field of `Stack`, never where that is empty).

    With `input`, only where it is that input of the node; `unless` the node has that attribute.
    Where the stack does not allow an `optional` one, the next that fits decides.
    """

    name: str
    lead: Wanted
    joins: Wanted
    allows: str
    input: int | None = None
    unless: str = ""
    optional: bool = False


_GEMM, _ANY = fits(kind="gemm"), fits()
_NORM, _NORM_GRAD = fits(op="batch_norm"), fits(op="batch_norm_grad")
_RELU_GRAD = fits(op="relu_grad")

FUSIONS = (
    Fusion("bias into its product", _GEMM, fits(op="bias"), "bias_fusion", 0, "apart"),
    Fusion("cast behind a product", _GEMM, fits(op="cast"), "cast_fusion"),
    Fusion("activation into its product", _GEMM, fits(kind="elementwise"), "epilogue_fusion"),
    Fusion("else into a product", _GEMM, _ANY, ""),
    Fusion(
        "sum or ReLU behind a norm", _NORM, fits(op=("add", "relu")), "norm_fusion", optional=True
    ),
    Fusion(
        "norm behind the gradient of ReLU", _RELU_GRAD, _NORM_GRAD, "norm_fusion", optional=True
    ),
    Fusion("cast into the op before it", _ANY, fits(op="cast"), "cast_fusion"),
    Fusion("op behind a cast", fits(op="cast"), _ANY, "cast_fusion"),
    Fusion("op of an update", _ANY, fits(role="update"), "fused_optimizer"),
    Fusion("op of a chain", _ANY, _ANY, "elementwise_fusion"),
)
"""The first that fits decides. No product joins, nor does a reduction of an update, nor a sum over
micro-batches (autograd's, outside what is compiled); what reads a reduction waits for it."""


class Fusing:
    """The rules of one stack: which of them lets a node join, and how many each has let."""

    def __init__(self, stack: Stack, recurrent: Collection[str] = ()) -> None:
        self.stack = stack
        self.recurrent = recurrent
        names = (ACCUMULATOR, CELL, *(row.name for row in FUSIONS), MERGED)
        self.counts = dict.fromkeys(names, 0)
        self._rules: dict[tuple[object, ...], str] = {}

    def rule(self, joins: Node, place: int, lead: Node) -> str:
        """Return the rule by which a node joins the kernel of its input `place`; "" for none."""
        if joins.layer == lead.layer and joins.layer in self.recurrent and _in_cell(joins, lead):
            return CELL
        marks = joins.attrs if joins.op.name == "bias" else ()  # of others no rule reads them
        key = joins.op, marks, joins.role, place, lead.op, lead.role
        if key not in self._rules:
            self._rules[key] = self._first_rule(joins, place, lead)
        return self._rules[key]

    def _first_rule(self, joins: Node, place: int, lead: Node) -> str:
        reduces = joins.op.kind == "reduce" and joins.role == "update"
        apart = joins.op.kind == "gemm" or joins.op.name == "accumulate"
        if apart or reduces or PHASES[joins.role] != PHASES[lead.role]:
            return ""
        row = next(
            row
            for row in FUSIONS
            if row.joins.fits_kind(joins)
            and row.lead.fits_kind(lead)
            and row.input in (None, place)
            and row.unless not in joins.attributes
            and not (row.optional and not getattr(self.stack, row.allows))
        )
        return row.name if row.allows and getattr(self.stack, row.allows) else ""


def _in_cell(joins: Node, lead: Node) -> bool:
    """Return whether both are elementwise ops of one direction."""
    return (
        all(n.op.kind == "elementwise" and n.op.pointwise for n in (joins, lead))
        and PHASES[joins.role] == PHASES[lead.role] < PHASES["update"]
    )


@dataclass(frozen=True)
class Kernel:
    """Nodes that run together, and the nodes whose values it reads from and writes to memory.

    `lead` is what the kernel is called after: its matrix product, else its first op that is no
    cast.
    """

    nodes: tuple[Node, ...]
    lead: Node
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]

    @property
    def only_casts(self) -> bool:
        return all(node.op.converts for node in self.nodes)


@dataclass(frozen=True)
class Fused:
    """A step in kernels: what the fusion pass makes of a graph, and what it is priced by.

    `by_rule` says how many kernels fewer there are than nodes by each rule of `fusion`.
    """

    kernels: tuple[Kernel, ...]
    by_rule: tuple[tuple[str, int], ...]


def kernels_of(graph: Graph, stack: Stack) -> tuple[Kernel, ...]:
    """Return the kernels of one step, see `fuse`."""
    return fuse(graph, stack).kernels


def fuse(graph: Graph, stack: Stack, recurrent: Collection[str] = ()) -> Fused:
    """Return the kernels of one step in the order of their first nodes.

    `recurrent` names the layers of cells that a library runs, see `joined.Joined`.

    A node joins the kernel of one of its inputs where a rule of the stack fuses the two, both work
    on the same number of elements, and nothing between them has to run first. A node marked
    `fused` always runs in the kernel of its reader. Nothing is fused across the finite check: the
    update waits for its verdict.
    """
    grouping = _Grouping(graph, stack, recurrent)
    for node in graph.nodes:
        if node.op.kind != "source" and grouping.root[node.id] == node.id:
            grouping.place(node)
    if stack.fused_optimizer:
        grouping.merge_updates()
    return Fused(grouping.kernels(), tuple(grouping.fusing.counts.items()))


class _Grouping:
    """A growing partition of the nodes.

    `home` is the kernel of a node, -1 of one without. Per kernel: `leads` is the node it is called
    after, `above` holds, as bits, all kernels it depends on, `parents` and `readers` those it reads
    from and those that read from it.

    Two kernels may become one where no third depends on the one and feeds the other: it could run
    neither before nor behind both. With all that a kernel depends on as the bits of one integer,
    that is one "and", whatever the depth of the net.
    """

    def __init__(self, graph: Graph, stack: Stack, recurrent: Collection[str]) -> None:
        self.graph = graph
        self.stack = stack
        self.fusing = Fusing(stack, recurrent)
        self.root = storage_of(graph)
        self.read = [tuple([self.root[i] for i in node.inputs]) for node in graph.nodes]
        self.home = [-1] * len(graph.nodes)
        self.members: list[list[Node]] = []
        self.leads: list[Node] = []
        self.above: list[int] = []
        self.parents: list[set[int]] = []
        self.readers: list[set[int]] = []
        self.checked = dict(graph.outputs).get("finite", len(graph.nodes))
        self.free_reads: set[int] = set()

    def inputs(self, node: Node) -> tuple[int, ...]:
        return self.read[node.id]

    def place(self, node: Node) -> None:
        """Put a node into a kernel; its inputs are in theirs."""
        parents = {self.home[i] for i in self.read[node.id]}
        parents.discard(-1)
        k = self.choose(node, parents)
        if k == len(self.members):
            self.open(node)
        else:
            self.leads[k] = _lead(self.leads[k], node)
            self.members[k].append(node)
        self.home[node.id] = k
        parents.discard(k)
        for p in parents:
            self.above[k] |= 1 << p | self.above[p]
            self.readers[p].add(k)
        self.parents[k] |= parents
        apart = node.role != "update" or node.op.kind in ("reduce", "gemm")
        if self.stack.fused_optimizer and not apart:
            for p in parents:
                self.absorb(node, p, k)
        self.pass_on(k)

    def open(self, node: Node) -> None:
        """Begin a kernel with `node`."""
        self.members.append([node])
        self.leads.append(node)
        self.above.append(0)
        self.parents.append(set())
        self.readers.append(set())

    def pass_on(self, k: int) -> None:
        """Tell the kernels that read from `k`, and so on, what it has come to depend on.

        A kernel with readers gains a parent where a later node joins it. What is told nothing new
        tells nobody: bits are only ever added, so this ends.
        """
        waiting = [k] if self.readers[k] else []
        while waiting:
            above = 1 << (source := waiting.pop()) | self.above[source]
            for reader in self.readers[source]:
                if above & ~self.above[reader]:
                    self.above[reader] |= above
                    waiting.append(reader)

    def absorb(self, node: Node, p: int, k: int) -> None:
        """Take kernel `p` of one update (say the second moment) into that of the step it feeds.

        A fused optimizer reads parameter, gradient and state once and writes them once, so the
        branches that meet in a node are one kernel; the bits of `p` stay in what read it, and stand
        for an empty kernel.
        """
        first, lead = self.members[p][0], self.leads[p]
        apart = (
            lead.role != "update"
            or lead.op.kind in ("reduce", "gemm")
            or (lead.op.name == "cast" and not self.stack.cast_fusion)
            or self.domain(lead) != self.domain(node)
            or first.id <= self.checked < node.id
        )
        # what depends on `p` and feeds `k` runs between the two: they cannot be one
        if apart or any(self.above[q] >> p & 1 for q in self.parents[k] - {p}):
            return
        self.move(p, k)
        self.above[k] &= ~(1 << p)
        for q in self.parents[p]:
            self.readers[q].add(k)
        for reader in self.readers[p] - {k}:
            self.parents[reader].add(k)
        self.parents[k] |= self.parents[p]
        self.parents[k].discard(p)
        self.readers[k] |= self.readers[p] - {k}

    def choose(self, node: Node, parents: set[int]) -> int:
        """Return the kernel to join, or the number of a new one."""
        read, nodes = self.read[node.id], self.graph.nodes
        for i in read:
            if nodes[i].fused:
                self.fusing.counts[ACCUMULATOR] += 1
                return self.home[i]
        above = 0  # what has to run before another input of the node: joining it would be a circle
        for p in parents:
            above |= self.above[p]
        for position, i in enumerate(read):
            k = self.home[i]
            if k >= 0 and not above >> k & 1:
                rule = self.fusing.rule(node, position, self.leads[k])
                if rule and self.may_join(node, k):
                    self.fusing.counts[rule] += 1
                    return k
        return len(self.members)

    def may_join(self, node: Node, k: int) -> bool:
        """Return whether nothing keeps a node from a kernel that its stack would fuse it into."""
        if self.members[k][0].id <= self.checked < node.id:
            return False
        # one loop over one extent; a reduction is done only when that loop is
        if self.domain(node) != self.domain(self.leads[k]):
            return False
        nodes = self.graph.nodes
        return not any(
            self.home[i] == k and nodes[i].op.kind == "reduce" for i in self.inputs(node)
        )

    def domain(self, node: Node) -> int:
        """Elements the node iterates over: its inputs' where it reduces, else its own."""
        nodes = self.graph.nodes
        tensors = [nodes[i] for i in node.inputs] if node.op.kind == "reduce" else [node]
        return max([size(tensor.shape) for tensor in tensors])

    def merge_updates(self) -> None:
        """Launch alike, independent update kernels as one, the finite check in the same pass.

        So do multi-tensor kernels (Apex `multi_tensor_apply`, torch `fused=True`): one launch takes
        the same ops of all parameters, and unscaling leaves whether all gradients are finite.
        """
        alike: dict[tuple[str, ...], tuple[int, int]] = {}
        for k, nodes in enumerate(self.members):
            if not nodes or any(node.role != "update" for node in nodes):
                continue
            if all(node.op.name == "cast" for node in nodes) or self.leads[k].op.kind == "gemm":
                continue
            if self.is_check(nodes):
                self.free_reads.add(nodes[0].id)  # it reads registers of the pass it joins
                self.move(k, max(self.home[i] for i in self.inputs(nodes[0])))
                continue
            ops = tuple(node.op.name for node in nodes)
            first, merged = alike.get(ops, (k, 0))
            if not self.above[k] & merged:
                alike[ops] = first, merged | 1 << k
                self.move(k, first)

    def is_check(self, nodes: list[Node]) -> bool:
        """Whether this is the finite check of gradients that update kernels have just made."""
        if len(nodes) > 1 or nodes[0].op.name not in OF_GRADIENTS or nodes[0].id > self.checked:
            return False
        homes = [self.home[i] for i in self.inputs(nodes[0])]
        return all(h >= 0 and self.members[h][0].role == "update" for h in homes)

    def move(self, k: int, to: int) -> None:
        if k == to:
            return
        self.fusing.counts[MERGED] += 1
        for node in self.members[k]:
            self.home[node.id] = to
        self.leads[to] = _lead(self.leads[to], self.leads[k])
        self.members[to] += self.members[k]
        self.members[k] = []

    def kernels(self) -> tuple[Kernel, ...]:
        # gradients are named outputs for inspection: only what reads them makes them stored
        outputs = [i for _, i in self.graph.outputs if self.graph.nodes[i].role != "update"]
        stored = {self.root[i] for i in outputs}
        stored |= {self.root[new] for _, new in self.graph.updates}
        reads: list[dict[int, dict[int, int]]] = [{} for _ in self.members]
        for node in self.graph.nodes:
            k = self.home[node.id]
            if k < 0 or node.id in self.free_reads:
                continue
            for i, given in zip(self.inputs(node), node.inputs, strict=True):
                if self.home[i] != k:
                    view, elements = self.viewed(given)
                    reads[k].setdefault(i, {})[view] = elements
                    stored.add(i)
        rows = []
        for nodes, lead, read in zip(self.members, self.leads, reads, strict=True):
            if nodes:
                writes = tuple(n for n in nodes if n.id in stored)
                inputs = tuple(self.part(i, sum(views.values())) for i, views in read.items())
                rows.append(Kernel(tuple(nodes), lead, inputs, writes))
        return tuple(rows)

    def viewed(self, i: int) -> tuple[int, int]:
        """Return the view, and its elements, that is read of what holds the value of node `i`.

        It is the smallest of the views between the two: of a tensor that was cut, the part.
        """
        nodes, root = self.graph.nodes, self.root[i]
        view, elements = root, size(nodes[root].shape)
        while i != root:
            if size(nodes[i].shape) < elements:
                view, elements = i, size(nodes[i].shape)
            i = nodes[i].inputs[0]
        return view, elements

    def part(self, i: int, elements: int) -> Node:
        """Return the node that holds a value with the shape of what is read of it."""
        node = self.graph.nodes[i]
        return node if elements >= size(node.shape) else replace(node, shape=(elements,))


def _lead(first: Node, other: Node) -> Node:
    """Return which of two nodes their kernel is called after, the first in doubt."""
    return other if _rank(other) > _rank(first) else first


def _rank(node: Node) -> int:
    return 2 if node.op.kind == "gemm" else int(node.op.name != "cast")
