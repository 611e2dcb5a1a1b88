"""Modeled memory of one training step: liveness over its nodes, and what an allocator makes of it.

    reserved = (live + work space) * (1 + fragments * share of a block) + context,
    at most what the card has

A caching allocator holds more than lives: a hole between blocks serves no larger request, and the
larger the blocks of a step are, the larger its holes. `share` is that of a block in what lives,
each block weighing by its bytes. Before it fails the allocator gives back all that it caches: a
step needs less than it reserves where there is more. Both are fitted to readings of cards that were
not full (`benchmarks/validation/validate_memory.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple, get_args

from policysearch.cost.devices import Device
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Shape, size
from policysearch.ops.source import INSIDE

Kind = Literal["parameter", "master", "optimizer", "gradient", "weight_copy", "activation", "mask"]

Occupancy = tuple[Kind, int, int, float]
"""Something that is held: its kind, the first and the last node that it is there at, its bytes."""

GIB = 2**30

VISIBLE_SHARE = 0.985
"""Of a card's nominal GiB what a process can have: 16160 of 16384 MiB on V100, 11019 of 11264 on
RTX 2080 Ti, 40536 of 40960 on A100."""

CONTEXT_BYTES = 0.8 * GIB
"""Of a process with its libraries' kernels loaded; assumed for CUDA 10, no row tells it alone."""

LARGEST_BATCH = 2**24
"""No larger batch is tried."""


FRAGMENTS = 6.502
"""Reserved over live bytes, less one, over the share of a block. `python -m benchmarks.validation
--memory` prints it, and the next."""

RESERVED_INTERVAL = (0.937, 1.281)
"""Factors on the expected reserved bytes between which 80 % of readings lie."""


class Needed(NamedTuple):
    """Of the modeled live bytes what a step needs at least, as expected and at most."""

    low: float
    expected: float
    high: float


NEEDED = Needed(0.9, 1.08, 1.4)
"""With a bound set to a process, torch runs steps in 1.01 to 1.15 times their live bytes, which are
0.95 to 1.2 times those modeled in nine of ten steps."""

WORKSPACE = 2.0
"""Bytes that a convolution's kernel works in over those of its operands and its result, where its
window is larger than a pixel and reads every channel."""


def node_bytes(node: Node) -> int:
    """Return the bytes of a node's value in its format, rounded up to whole bytes."""
    if node.role == "input" and (INSIDE, True) in node.attrs:
        return 0
    return _bytes(node.shape, node.format)


@lru_cache(maxsize=4096)
def _bytes(shape: Shape, format: str) -> int:
    return -(-size(shape) * format_named(format).bits // 8)


def traffic(tensors: Iterable[Node]) -> tuple[int, int]:
    """Return the bytes and the elements of the values of nodes."""
    bytes = elements = 0
    for tensor in tensors:
        bytes += node_bytes(tensor)
        elements += size(tensor.shape)
    return bytes, elements


def same_bytes(one: str, other: str) -> bool:
    """Return whether values of both formats are stored alike, as tfloat32 is as float32."""
    return one == other or {one, other} == {"float32", "tfloat32"}


def storage_of(graph: Graph) -> list[int]:
    """Return, for each node, the node whose memory holds its value, mostly itself.

    Four kinds of node have no memory: a reshape is a view; a cast between float32 and tfloat32
    happens as the matrix unit reads; a cast that an update makes of what is stored narrow
    (parameters without masters, their gradients, optimizer state) stays in registers; the casts
    of a float32 gradient into the format it is reduced in, and back, are done by the copies into
    and out of the buffer of the reduction, which float32 needs as well.
    """
    narrow = {
        (node.layer, node.shape)
        for node in graph.nodes
        if node.op.name == "parameter" and format_named(node.format).bits < 32
    }
    new_values = {new for _, new in graph.updates}
    storage = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.kind == "move" or (
            node.op.name == "cast"
            and (
                _in_registers(node, graph.nodes[node.inputs[0]], narrow)
                or _reduces(node, graph)
                or (node.id in new_values and graph.nodes[node.inputs[0]].role == "update")
            )
        ):
            storage[node.id] = storage[node.inputs[0]]
    return storage


def _in_registers(cast: Node, operand: Node, narrow: set[tuple[str, Shape]]) -> bool:
    if same_bytes(cast.format, operand.format):
        return True
    stored_narrow = operand.op.kind == "source" or (cast.layer, cast.shape) in narrow
    return cast.role == "update" and stored_narrow


def _reduces(cast: Node, graph: Graph) -> bool:
    """Whether a cast is of the reduction of a gradient over devices, into its buffer or out."""
    operand = graph.nodes[cast.inputs[0]]
    if cast.role != "update" or cast.format == operand.format:
        return False
    if operand.role in ("dgrad", "wgrad"):
        return cast.format != "float32" and operand.op.name != "amax"
    before = graph.nodes[operand.inputs[0]] if operand.op.name == "cast" else operand
    gradient = operand.role == "update" and before.role in ("dgrad", "wgrad")
    return gradient and same_bytes(before.format, cast.format) and cast.format == "float32"


@dataclass(frozen=True)
class StepMemory:
    """Modeled memory of one step in bytes.

    `peak_bytes` is the most that is live at once, and the parts are what is live then: parameters
    (running statistics included) and those that are masters, which products read as narrow copies;
    optimizer state; gradients of parameters (their float32 casts included); narrow copies of
    parameters; masks of dropout, a byte each; and all else. `peak_node` is the id of the node that
    runs at that moment. `workspace_bytes` are what the work space of kernels adds to the most that
    is held. `block_share` is the share of a buffer in the peak, buffers weighing by their
    bytes. A process reserves between the two `reserved` bounds where the card sets none, and runs
    in what it `needs`; both have its context included.
    """

    peak_bytes: int
    peak_node: int
    parameter_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    weight_copy_bytes: int
    activation_bytes: int
    master_bytes: int = 0
    mask_bytes: int = 0
    workspace_bytes: int = 0
    block_share: float = 0.0

    @property
    def held_bytes(self) -> int:
        """What is live and worked in at most."""
        return self.peak_bytes + self.workspace_bytes

    @property
    def reserved_low_bytes(self) -> int:
        return round(self._reserved_bytes(RESERVED_INTERVAL[0]))

    @property
    def reserved_high_bytes(self) -> int:
        return round(self._reserved_bytes(RESERVED_INTERVAL[1]))

    def _reserved_bytes(self, factor: float) -> float:
        return process_bytes(self.held_bytes, factor * (1 + FRAGMENTS * self.block_share))

    @property
    def parts(self) -> tuple[tuple[Kind, int], ...]:
        """(kind, bytes) of what is live at the peak."""
        return tuple((kind, getattr(self, f"{kind}_bytes")) for kind in get_args(Kind))

    @property
    def needed_high_bytes(self) -> int:
        return round(process_bytes(self.held_bytes, NEEDED.high))

    def fits(self, device: Device) -> bool:
        """Whether the most that it may need is within the smallest size sold."""
        return self.needed_high_bytes <= visible_bytes(device.memory_bytes / GIB)

    def may_fit(self, device: Device) -> bool:
        """Whether the least that it needs is: where it is not, the step does not fit for sure."""
        least = process_bytes(self.held_bytes, NEEDED.low)
        return least <= visible_bytes(device.memory_bytes / GIB)


@dataclass(frozen=True)
class Life:
    """A buffer: the node that makes it and the first and last node at which it is held."""

    owner: Node
    first: int
    last: int
    kind: Kind

    @property
    def bytes(self) -> int:
        return size(self.owner.shape) if self.kind == "mask" else node_bytes(self.owner)


def lives(graph: Graph) -> tuple[Life, ...]:
    """Return every buffer of the step.

    Sources are held throughout: parameters, state and the batch. Views share the buffer of what
    they show. A new parameter or state takes the place of the old one where nothing reads the
    old one later, a gradient is added to the sum over micro-batches where that is, and other
    updates (unscaling, clipping) work in place where they may. A node marked `fused` has no buffer.
    Gradients last until their last reader, named outputs or not.
    """
    storage = storage_of(graph)
    read = _last_reads(graph, storage)
    lasting = {i for _, i in graph.outputs if graph.nodes[i].role != "update"}
    lasting |= {new for _, new in graph.updates}
    last = [len(graph.nodes) if i in lasting else read[storage[i]] for i in range(len(graph.nodes))]
    buffer = _buffers(graph, storage, last)
    ends: dict[int, int] = {}
    for node in graph.nodes:
        if not node.fused:
            end = len(graph.nodes) if node.op.kind == "source" else last[node.id]
            ends[buffer[node.id]] = max(ends.get(buffer[node.id], 0), end)
    kinds = _kinds(graph)
    return tuple(
        Life(owner, 0 if owner.op.kind == "source" else i, end, kinds[i])
        for i, end in ends.items()
        for owner in (graph.nodes[i],)
    )


def step_memory(graph: Graph) -> StepMemory:
    """Return the modeled memory of one step of `graph`.

    The bytes live at a node are the sum of all changes up to it: a buffer adds its bytes at its
    first node and takes them off behind its last.
    """
    rows = lives(graph)
    change = [0] * (len(graph.nodes) + 2)
    for life in rows:
        change[life.first] += life.bytes
        change[life.last + 1] -= life.bytes
    along = list(accumulate(change[: len(graph.nodes)]))
    peak = max(along, default=0)
    peak_node = along.index(peak) if peak else 0
    parts = dict.fromkeys(get_args(Kind), 0)
    for life in rows:
        if life.first <= peak_node <= life.last:
            parts[life.kind] += life.bytes
    named = {f"{kind}_bytes": bytes for kind, bytes in parts.items()}
    shares = block_share(map(occupancy, rows), peak)
    return StepMemory(
        peak, peak_node, **named, workspace_bytes=workspace_bytes(graph, along), block_share=shares
    )


def workspace_bytes(graph: Graph, along: Sequence[float]) -> int:
    """Return what the work space of kernels adds to the most of the bytes live `along` the step."""
    most = peak = max(along, default=0.0)
    for node in graph.nodes:
        if node.op.name.startswith("conv") and node.attributes.get("groups", 1) == 1:
            tensors = (node, *(graph.nodes[i] for i in node.inputs))
            weight = min(tensors, key=lambda tensor: size(tensor.shape[2:]))
            if size(weight.shape[2:]) > 1:
                room = WORKSPACE * sum(node_bytes(tensor) for tensor in tensors)
                most = max(most, along[node.id] + room)
    return round(most - peak)


def occupancy(life: Life) -> Occupancy:
    """Return when a buffer is held, and its bytes."""
    return life.kind, life.first, life.last, life.bytes


def block_share(rows: Iterable[Occupancy], peak: float) -> float:
    """Return the share in `peak` of what is made in the step, each weighing by its bytes."""
    sizes = [bytes for _, first, _, bytes in rows if first]
    return sum(bytes**2 for bytes in sizes) / max(1.0, sum(sizes)) / max(1.0, peak)


def live_by_kind(graph: Graph) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
    """Return for each node that is no source where it runs and the bytes live then, by kind."""
    return labelled(graph, live_along(graph, map(occupancy, lives(graph))))


def live_along(graph: Graph, occupancies: Iterable[Occupancy]) -> list[dict[Kind, float]]:
    """Return the bytes of what is held as each node runs, by kind."""
    change: list[dict[Kind, float]] = [{} for _ in range(len(graph.nodes) + 2)]
    for kind, first, last, bytes in occupancies:
        for i, step in ((first, bytes), (last + 1, -bytes)):
            change[i][kind] = change[i].get(kind, 0) + step
    live: dict[Kind, float] = {}
    along = []
    for node in graph.nodes:
        live = {kind: live.get(kind, 0) + change[node.id].get(kind, 0) for kind in get_args(Kind)}
        along.append(live)
    return along


def labelled(
    graph: Graph, live: Sequence[Mapping[Kind, float]]
) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
    """Return, without the sources, where each node runs and its whole bytes of `live`, by kind."""
    return tuple(
        (
            f"{node.layer or node.op.name} {node.role}",
            {kind: round(bytes) for kind, bytes in live[node.id].items()},
        )
        for node in graph.nodes
        if node.op.kind != "source"
    )


def _last_reads(graph: Graph, storage: list[int]) -> list[int]:
    """Return, for each node with memory, the last node that reads it or a view of it."""
    read = list(range(len(graph.nodes)))
    for node in graph.nodes:
        for i in (node.id, *node.inputs):
            read[storage[i]] = max(read[storage[i]], node.id)
    return read


def _buffers(graph: Graph, storage: list[int], last: list[int]) -> list[int]:
    """Return, for each node, the node whose buffer holds its value.

    What `storage` says, and what updates overwrite: a new parameter or state goes where the old one
    is (an optimizer works in place), other values of the update where their inputs were.
    """
    buffer = list(storage)
    # a new state that is cast on its way to where it is kept has been in registers until then
    replaced = {storage[new]: old for old, new in graph.updates if graph.nodes[new].op.converts}
    replaced = {i: old for i, old in replaced.items() if graph.nodes[i].role == "update"}
    replaced |= {new: old for old, new in graph.updates}
    for node in graph.nodes:
        if storage[node.id] != node.id:
            buffer[node.id] = buffer[storage[node.id]]
        elif node.id in replaced:
            if last[replaced[node.id]] <= node.id:
                buffer[node.id] = replaced[node.id]
        elif node.op.name == "accumulate":
            buffer[node.id] = buffer[node.inputs[0]]
        elif node.role == "update":
            buffer[node.id] = _overwritten(graph, node, buffer, last)
    return buffer


def _overwritten(graph: Graph, node: Node, buffer: list[int], last: list[int]) -> int:
    """Return the buffer an update may write into: an input it is the last to read, or its own."""
    for i in (node.inputs[position] for position in node.op.in_place):
        owner = graph.nodes[buffer[i]]
        ours = owner.op.kind != "source" or owner.op.name == "gradient_buffer"
        fits = ours and node_bytes(owner) == node_bytes(node)
        if fits and last[i] == node.id:
            return owner.id
    return node.id


def _kinds(graph: Graph) -> list[Kind]:
    """Return the kind of each node's buffer."""
    kinds = [_kind(graph, node) for node in graph.nodes]
    for node in graph.nodes:
        if node.op.name == "dropout" and graph.nodes[node.inputs[1]].op.kind == "source":
            kinds[node.inputs[1]] = "mask"
        if kinds[node.id] == "weight_copy":
            origin = graph.nodes[node.inputs[0]]
            narrower = node_bytes(node) < node_bytes(origin)
            if origin.op.name == "parameter" and narrower:
                kinds[origin.id] = "master"
    return kinds


def _kind(graph: Graph, node: Node) -> Kind:
    if node.op.name in ("parameter", "buffer"):
        return "parameter"
    if node.op.name == "state":
        return "optimizer"
    if node.role in ("wgrad", "update") or node.op.name == "gradient_buffer":
        return "gradient"
    if node.op.converts:
        origin = node
        while origin.op.converts:
            origin = graph.nodes[origin.inputs[0]]
        if origin.op.name == "parameter":
            return "weight_copy"
    return "activation"


def visible_bytes(card_gib: float) -> float:
    """Return what a process can have of a card of so many GiB."""
    return VISIBLE_SHARE * card_gib * GIB


def process_bytes(live: float, growth: float) -> float:
    """Return what a process takes where the card sets no bound."""
    return live * growth + CONTEXT_BYTES


def largest_batch(live_at: Callable[[int], float], growth: float, visible: float) -> int:
    """Return the largest batch that fits where memory grows with the batch; 0 if none does.

    `live_at` gives the live bytes at a batch. Between the last batch that fits and the first that
    does not it is taken for straight, and asked where that line meets what there is.
    """
    room = (visible - CONTEXT_BYTES) / growth
    low, low_bytes, high = 0, 0.0, 1
    while (high_bytes := live_at(high)) <= room and high < LARGEST_BATCH:
        low, low_bytes, high = high, high_bytes, 8 * high
    if high_bytes <= room:
        return high
    while high - low > 1:
        secant = low + int((high - low) * (room - low_bytes) / (high_bytes - low_bytes))
        middle = min(max(secant, low + 1), high - 1)
        if (bytes := live_at(middle)) <= room:
            if live_at(middle + 1) > room:
                return middle
            low, low_bytes = middle, bytes
        else:
            high, high_bytes = middle, bytes
    return low
