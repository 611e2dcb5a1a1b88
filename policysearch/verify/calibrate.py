"""A device row from kernels of no net in particular, timed on this machine."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch

from policysearch.cost.device_file import Machine, timed_device
from policysearch.cost.devices import Device
from policysearch.cost.measured import calls_of
from policysearch.cost.stacks import stack_named
from policysearch.cost.timings import Extents, Timing, Timings, Work
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import timed_updates
from policysearch.policy.presets import preset
from policysearch.verify.clock import Clock, cache_bytes, one_thread, quartile
from policysearch.verify.torch_kernels import kernel
from policysearch.verify.torch_step import net

FLOAT32_OPS = ("softmax", "softmax_grad", "layer_norm", "layer_norm_grad")
"""Ops that low-precision policies keep in float32."""
ELEMENTWISE = ("add", "scale", "relu", "relu_grad", "gelu", "gelu_grad", "bias_grad")
LOSSES = ("softmax_cross_entropy", "softmax_cross_entropy_grad")


@dataclass(frozen=True)
class Sizes:
    """Extents of what is timed, as `Work` has them.

    `sides`: rows, columns and depth of products take each of them; `batches`: of batched products;
    `heads`: of transposes; `passes`: of ops that pass over memory; `updates`: of optimizers.
    """

    sides: tuple[int, ...]
    batches: tuple[Extents, ...]
    heads: tuple[Extents, ...]
    passes: tuple[Extents, ...]
    updates: tuple[Extents, ...]


SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        "cpu": Sizes(
            sides=(16, 64, 256, 1024),
            batches=((64, 16, 16, 16), (64, 32, 32, 64), (64, 64, 16, 64), (64, 128, 128, 32)),
            heads=((16, 16, 4, 16), (16, 32, 4, 64), (64, 64, 8, 64)),
            passes=((8, 32), (64, 64), (128, 512), (1024, 1024)),
            updates=((2, 2**10), (16, 2**16), (16, 2**20), (16, 2**22)),
        ),
        "cuda": Sizes(
            sides=(64, 512, 2048, 8192),
            batches=(
                (64, 64, 64, 64),
                (64, 512, 512, 64),
                (64, 512, 64, 512),
                (64, 1024, 1024, 64),
            ),
            heads=((16, 64, 4, 64), (16, 512, 16, 64), (64, 512, 16, 64)),
            passes=((64, 64), (1024, 1024), (8192, 1024), (8192, 8192)),
            updates=((2, 2**10), (16, 2**20), (16, 2**24), (16, 2**27)),
        ),
    }
)
"""By the kind of place: its smallest kernels are all launch, its largest reach the peak."""


def generic_works(formats: Iterable[str], kind: str) -> tuple[Work, ...]:
    """Return kernels in `formats` of the `SIZES` of a kind of place."""
    sizes = SIZES[kind]
    works = []
    for name in formats:
        for op, extents in itertools.product(
            ("linear", "matmul.nn", "matmul.tn"), itertools.product(sizes.sides, repeat=3)
        ):
            works.append(Work(op, name, (1, *extents)))
        for op in ("matmul.nt", "matmul.nn", "matmul.tn"):
            works += [Work(op, name, extents) for extents in sizes.batches]
        works += [Work("transpose.0213", name, extents) for extents in sizes.heads]
        ops = ELEMENTWISE if name != "float32" else (*ELEMENTWISE, *FLOAT32_OPS, *LOSSES)
        works += [Work(op, name, extents) for op in ops for extents in sizes.passes]
        if name != "float32":
            casts = (f"float32>{name}", f"{name}>float32")
            works += [Work("cast", cast, extents) for cast in casts for extents in sizes.passes]
    updates = timed_updates()
    return (*works, *(Work(op, "float32", extents) for op in updates for extents in sizes.updates))


Call = Callable[[], object]
FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cpu": ("float32", "bfloat16"), "cuda": ("float32", "float16", "bfloat16")}
)
"""What is timed by default: formats in which torch's products are no emulation there."""

DEPTHS = (4, 24)
"""Layers of the two small steps that tell what the host takes."""


class Bench:
    """Kernels that are timed again and again, so that other work may go between the rounds.

    `warm`: each runs once untimed before the caches are evicted. Where many kernels of no net in
    particular take turns, their code would else come from memory, as it never does in a step.
    """

    def __init__(
        self, works: Iterable[Work], clock: Clock, rng: np.random.Generator, warm: bool = False
    ) -> None:
        self.clock, self.rng, self.warm = clock, rng, warm
        calls = {work: kernel(work, clock.place) for work in dict.fromkeys(works)}
        self.calls = {work: call for work, call in calls.items() if call is not None}
        self.taken: dict[Work, list[tuple[float, float]]] = {work: [] for work in self.calls}
        for call in self.calls.values():
            call()

    def round(self) -> None:
        """Time the kernels once each, in random order."""
        works = list(self.calls)
        for i in self.rng.permutation(len(works)):
            call = self.calls[works[i]]
            if self.warm:
                call()
            self.clock.evict()
            evicted = self.clock.seconds(call)
            self.taken[works[i]].append((evicted, self.clock.seconds(call)))

    def timings(self, part: slice = slice(None)) -> Timings:
        """Return the lower quartiles of the rounds in `part`."""
        rows = []
        for work, pairs in self.taken.items():
            if pairs[part]:
                evicted, cached = (
                    quartile(list(times)) for times in zip(*pairs[part], strict=True)
                )
                rows.append(Timing(work.op, work.format, work.extents, evicted, cached))
        return Timings(tuple(rows))


def host_seconds(
    clock: Clock, device: Device, rng: np.random.Generator, rounds: int = 40
) -> tuple[float, float]:
    """Return what the host spends on each kernel beside its own call, and on each step, in seconds.

    They are those of two steps so small that nothing else counts, one of `DEPTHS` and one of more
    layers: what they take beyond their kernels is a line over the number of kernels.
    """
    steps = [_host(clock, device, rng, layers, rounds) for layers in DEPTHS]
    (few, short), (many, long) = steps
    # two points of the line: its slope is a kernel's share, what it has at no kernels the step's
    per_kernel = max(0.0, (long - short) / (many - few))
    return per_kernel, max(0.0, short - per_kernel * few)


def _host(
    clock: Clock, device: Device, rng: np.random.Generator, layers: int, rounds: int
) -> tuple[int, float]:
    """Return the kernels of a step of so many layers, and its seconds beyond theirs."""
    small = net(mlp((8,) * (layers + 1)), "momentum", 4, rng, clock.place)
    graph = small.policy_graph(preset("float32", small.model.layer_names))
    works = [task.work for task in calls_of(graph, device, stack_named("torch.eager"))]
    bench, step = Bench(works, clock, rng), small.step(graph)
    if clock.place.type == "cuda":
        return len(works), clock.host_seconds(step)
    taken = []
    for _ in range(rounds):
        bench.round()
        taken.append(clock.seconds(step, 4))
    table = bench.timings()
    return len(works), quartile(taken) - sum(table.seconds(work, 1.0) for work in works)


def machine_of(place: torch.device) -> Machine:
    """Return what torch and the system say of this machine; of a CPU one thread is timed."""
    if place.type == "cuda":
        known = torch.cuda.get_device_properties(place)
        memory, units = known.total_memory, known.multi_processor_count
        return Machine(known.name, memory / 2**30, units, cache_bytes(place), "overlaps")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine("cpu", memory / 2**30, 1, cache_bytes(place), "adds")


def calibrate(
    name: str,
    place: torch.device,
    formats: Iterable[str],
    rounds: int,
    rng: np.random.Generator,
    progress: Callable[[str], None] = lambda line: None,
) -> Device:
    """Return the row of this machine from generic kernels, each timed `rounds` times."""
    clock = Clock(place)
    with one_thread():
        bench = Bench(generic_works(formats, place.type), clock, rng, warm=True)
        for number in range(rounds):
            bench.round()
            progress(f"round {number + 1} of {rounds}: {len(bench.calls)} kernels")
        source = f"measured, policysearch calibrate, torch {torch.__version__}"
        bare = timed_device(name, bench.timings(), machine_of(place), source)
        per_kernel, step = host_seconds(clock, bare, rng)
        return replace(bare, host_seconds=per_kernel, host_step_seconds=step)
