"""Compares the memory of an emulated training step with the liveness bound of its graph.

    python -m benchmarks.memory

Bound: the most bytes live at any position of the order of execution, in float32 containers: every
source throughout, every value from the node that makes it to its last reader. It is computed here
from the graph and that order alone. "in place" is the same bound when views take nothing and a
value may take the place of an input that dies there or of the parameter it replaces. Measured:
tracemalloc's peak during the fourth step, with everything allocated since the model was made
(rounding scratch and the python objects of graph and plan included).

A training has the step twice: observed, for its counts of what rounding loses, and plain. Both take
turns in one arena; "two arenas" is what they would have each by itself. The peak is tracemalloc's
over an observed step and a plain one, from before the trainer was made.
"""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import numpy as np

from benchmarks.nets import BATCHES, NETS, batch_of, policy_of, prepared, step_graph
from benchmarks.timing import machine, parser, pin_one_thread, show, write_csv
from policysearch.emulator.executable import Executable
from policysearch.emulator.plan import Plan
from policysearch.graph import Graph, size
from policysearch.nn.chain import Chain
from policysearch.ops.builder import renumbered
from policysearch.train.feeding import initial_parameters
from policysearch.train.swamped import with_update_sources
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

ALLOWED = 1.3
COLUMNS = (
    *("model", "batch", "policy", "bound_bytes", "in_place_bound_bytes"),
    *("arena_bytes", "source_bytes", "measured_peak_bytes"),
    *("two_arenas_bytes", "training_arena_bytes", "training_peak_bytes"),
)
STEP_COLUMNS = (
    *("net, batch, policy", "bound MB", "in-place bound MB", "arena + sources MB", "measured MB"),
    *("/ bound", "/ in-place bound", "measured / bound"),
)
TRAINING_COLUMNS = (
    *("net, batch, policy", "bound MB", "sources MB", "two arenas MB", "one arena MB", "peak MB"),
    *("two + sources / bound", "one + sources / bound", "peak / bound"),
)


def executed(graph: Graph) -> Graph:
    """Return `graph` with its nodes in the order in which the plan runs them, sources first."""
    sources = [node for node in graph.nodes if node.op.kind == "source"]
    return renumbered(graph, sources + Plan(graph).order)


def last_uses(graph: Graph) -> list[int]:
    """Return, for each node, the id of the last node that reads it (itself if none).

    Outputs and the new values of updates are read after the last node.
    """
    last = [node.id for node in graph.nodes]
    for node in graph.nodes:
        for i in node.inputs:
            last[i] = node.id
    for _, i in graph.outputs:
        last[i] = len(graph.nodes)
    for old, new in graph.updates:
        last[old] = last[new] = len(graph.nodes)
    return last


def bound_bytes(graph: Graph, *, in_place: bool) -> int:
    """Return the liveness bound of `graph` in bytes."""
    end = len(graph.nodes)
    last = last_uses(graph)
    home = list(range(end))
    until: dict[int, int] = {}
    replaced = {new: old for old, new in graph.updates}
    for node in graph.nodes:
        source = node.op.kind == "source"
        if in_place and not source:
            home[node.id] = _place(graph, node.id, home, until, replaced)
        owner = home[node.id]
        until[owner] = end if source else max(until.get(owner, 0), last[node.id])
    change = [0] * (end + 2)
    for owner, stop in until.items():
        node = graph.nodes[owner]
        change[0 if node.op.kind == "source" else owner] += 4 * size(node.shape)
        change[stop + 1] -= 4 * size(node.shape)
    return int(np.cumsum(change).max())


def _place(
    graph: Graph, i: int, home: list[int], until: dict[int, int], replaced: dict[int, int]
) -> int:
    """Return the node whose memory node `i` may take, or itself."""
    node = graph.nodes[i]
    if i in replaced:
        return home[replaced[i]]
    inputs = node.inputs[:1] if node.op.kind == "move" else ()
    inputs += tuple(node.inputs[at] for at in node.op.in_place if at < len(node.inputs))
    for given in inputs:
        owner = graph.nodes[home[given]]
        if owner.op.kind == "source" or size(owner.shape) != size(node.shape):
            continue
        if node.op.kind == "move" or until[owner.id] <= i:
            return owner.id
    return i


def measure(model: Chain, name: str, batch: int) -> tuple[int, int, int]:
    """Return (arena, sources, measured peak) in bytes."""
    policy = policy_of(model, name)
    gc.collect()
    tracemalloc.start()
    executable = prepared(model, policy, batch)
    assert isinstance(executable, Executable)
    for _ in range(3):
        executable.forward_backward()
        executable.apply_updates()
    tracemalloc.reset_peak()
    executable.forward_backward()
    executable.apply_updates()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sources = sum(array.nbytes for array in executable.arrays.values())
    return executable.arena_bytes, sources, peak


def measure_training(model: Chain, name: str, batch: int) -> tuple[int, int]:
    """Return (arena, peak) in bytes of a trainer that takes an observed step and a plain one."""
    policy, task = policy_of(model, name), Task(batch_size=batch)
    images, targets = batch_of(model, batch)
    labels = targets.argmax(axis=1)
    start = initial_parameters(model, 0)
    gc.collect()
    tracemalloc.start()
    trainer = Trainer(model, task, policy, 0)
    trainer.load(start)
    for _ in range(2):
        trainer.step([images], labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return trainer.arena.bytes, peak


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    given = options.parse_args()
    pin_one_thread()
    rows, trained, lines, worst = [], [], [], 0.0
    for net, build in NETS.items():
        model = build()
        for batch, name in itertools.product(BATCHES, ("float32", "float16", "float8")):
            step = step_graph(model, policy_of(model, name), batch)
            graph = executed(step)
            plain = bound_bytes(graph, in_place=False)
            strict = bound_bytes(graph, in_place=True)
            arena, sources, peak = measure(model, name, batch)
            two = 4 * (Plan(step).elements + Plan(with_update_sources(step)).elements)
            one, training = measure_training(model, name, batch)
            given_bytes = [plain, strict, arena, sources, peak, two, one, training]
            lines.append([net, batch, name, *given_bytes])
            megabytes = [value / 1e6 for value in (plain, strict, arena + sources, peak)]
            ratios = [megabytes[2] / megabytes[0], megabytes[2] / megabytes[1]]
            rows.append([f"{net}, {batch}, {name}", *megabytes, *ratios, peak / plain])
            parts = [value / 1e6 for value in (plain, sources, two, one, training)]
            ratios = [(two + sources) / plain, (one + sources) / plain, training / plain]
            trained.append([f"{net}, {batch}, {name}", *parts, *ratios])
            worst = max(worst, (arena + sources) / plain)
    show("Memory of one training step", STEP_COLUMNS, rows)
    show("Memory of a training", TRAINING_COLUMNS, trained)
    print(f"\nworst arena + sources / bound: {worst:.2f} (allowed {ALLOWED})\n{machine()}")
    write_csv(given.out / "memory.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
