"""From the nodes of a step to the kernels a stack would launch for them."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.cost.fusion import ACCUMULATOR, MERGED, Fusing
from policysearch.cost.stacks import Stack
from policysearch.cost.storage import roots
from policysearch.graph import Graph, Node, size


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


def fuse(graph: Graph, stack: Stack) -> Fused:
    """Return the kernels of one step in the order of their first nodes.

    A node joins the kernel of one of its inputs where a rule of the stack fuses the two, both work
    on the same number of elements, and nothing between them has to run first. A node marked
    `fused` always runs in the kernel of its reader. Nothing is fused across the finite check: the
    update waits for its verdict.
    """
    grouping = _Grouping(graph, stack)
    for node in graph.nodes:
        if node.op.kind != "source" and grouping.root[node.id] == node.id:
            grouping.place(node)
    if stack.fused_optimizer:
        grouping.merge_updates()
    return Fused(grouping.kernels(), tuple(grouping.fusing.counts.items()))


class _Grouping:
    """A growing partition of the nodes.

    Per kernel: `leads` is the node it is called after, `above` holds, as bits, all kernels it
    depends on, `parents` and `readers` those it reads from and those that read from it.
    """

    def __init__(self, graph: Graph, stack: Stack) -> None:
        self.graph = graph
        self.stack = stack
        self.fusing = Fusing(stack)
        self.root = roots(graph)
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
        if node.role == "update" and node.op.kind != "reduce" and self.stack.fused_optimizer:
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
        """Tell the kernels that read from `k`, and so on, what it has come to depend on."""
        waiting = [k] if self.readers[k] else []
        while waiting:
            above = 1 << (source := waiting.pop()) | self.above[source]
            for reader in self.readers[source]:
                if above & ~self.above[reader]:
                    self.above[reader] |= above
                    waiting.append(reader)

    def absorb(self, node: Node, p: int, k: int) -> None:
        """Take kernel `p` of one update (say the second moment) into that of the step it feeds."""
        first, lead = self.members[p][0], self.leads[p]
        apart = (
            lead.role != "update"
            or lead.op.kind == "reduce"
            or (lead.op.name == "cast" and not self.stack.cast_fusion)
            or self.domain(lead) != self.domain(node)
            or first.id <= self.checked < node.id
        )
        # what runs between the two ends in a kernel that `k` reads from
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
        first = 0
        for p in parents:
            first |= self.above[p]
        for position, i in enumerate(read):
            k = self.home[i]
            if k >= 0 and not first >> k & 1:
                rule = self.fusing.rule(node, position, self.leads[k])
                if rule and self.may_join(node, k):
                    self.fusing.counts[rule] += 1
                    return k
        return len(self.members)

    def may_join(self, node: Node, k: int) -> bool:
        """Return whether nothing keeps a node from a kernel that its stack would fuse it into."""
        if self.members[k][0].id <= self.checked < node.id or self.domain(node) != self.domain(
            self.leads[k]
        ):
            return False
        nodes = self.graph.nodes
        return not any(
            self.home[i] == k and nodes[i].op.kind == "reduce" for i in self.inputs(node)
        )

    def domain(self, node: Node) -> int:
        """Elements the node iterates over: its inputs' where it reduces, else its own."""
        if node.op.kind == "reduce":
            return max(size(self.graph.nodes[i].shape) for i in node.inputs)
        return size(node.shape)

    def merge_updates(self) -> None:
        """Launch alike, independent update kernels as one, the finite check in the same pass."""
        alike: dict[tuple[str, ...], tuple[int, int]] = {}
        for k, nodes in enumerate(self.members):
            if not nodes or any(node.role != "update" for node in nodes):
                continue
            if all(node.op.name == "cast" for node in nodes):
                continue
            if self.is_check(nodes):
                self.free_reads.add(nodes[0].id)
                self.move(k, max(self.home[i] for i in self.inputs(nodes[0])))
                continue
            ops = tuple(node.op.name for node in nodes)
            first, merged = alike.get(ops, (k, 0))
            if not self.above[k] & merged:
                alike[ops] = first, merged | 1 << k
                self.move(k, first)

    def is_check(self, nodes: list[Node]) -> bool:
        """Whether this is the finite check of gradients that update kernels have just made."""
        if len(nodes) > 1 or nodes[0].op.kind != "reduce" or nodes[0].id > self.checked:
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
        kept = [i for _, i in self.graph.outputs if self.graph.nodes[i].role != "update"]
        stored = {self.root[i] for i in kept}
        stored |= {self.root[new] for _, new in self.graph.updates}
        reads: list[dict[int, None]] = [{} for _ in self.members]
        for node in self.graph.nodes:
            k = self.home[node.id]
            if k < 0 or node.id in self.free_reads:
                continue
            for i in self.inputs(node):
                if self.home[i] != k:
                    reads[k][i] = None
                    stored.add(i)
        rows = []
        for nodes, lead, read in zip(self.members, self.leads, reads, strict=True):
            if nodes:
                writes = tuple(n for n in nodes if n.id in stored)
                inputs = tuple(self.graph.nodes[i] for i in read)
                rows.append(Kernel(tuple(nodes), lead, inputs, writes))
        return tuple(rows)


def _lead(first: Node, other: Node) -> Node:
    """Return which of two nodes their kernel is called after, the first in doubt."""
    return other if _rank(other) > _rank(first) else first


def _rank(node: Node) -> int:
    return 2 if node.op.kind == "gemm" else int(node.op.name != "cast")
