"""What an optimizer's update takes: time, launches, state and temporaries.

Its row says which passes over parameters its kernels make. Op by op they are those
of `torch.optim`'s own implementations, which a test counts; in one kernel those of torch's
`fused=True` and of Apex. Ascend Apex joins the parameters, gradients and state of a group in one
buffer each, and runs the ops over these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from policysearch.cost.devices import Device
from policysearch.cost.gemm import Extents
from policysearch.cost.roofline import FITTED, Work, joined_seconds, kernel_seconds, load_of
from policysearch.cost.stacks import Stack
from policysearch.graph import Shape, size
from policysearch.optimizers.optimizer import Rule, rules
from policysearch.values import InputError, one_of

Kernels = Literal["fused", "combined", "foreach", "single"]
"""One kernel over many tensors (torch `fused=True`, Apex); op by op over one buffer for each group
(Ascend Apex); op by op over many tensors (torch `foreach=True`); tensor by tensor."""

TENSORS_OF_LAUNCH: Mapping[int, int] = MappingProxyType({1: 110, 2: 64, 3: 48, 4: 36, 5: 30})
"""Tensors of each list that one launch over that many lists takes: `depth_to_max_tensors` of
torch's MultiTensorApply.cuh."""


@dataclass(frozen=True)
class UpdatePrice:
    """Modeled time and memory of an update.

    `seconds` are for ratios only. `bytes` it moves, `state_bytes` it keeps between steps and
    `aside_bytes` it needs for a moment.
    """

    seconds: float
    launches: int
    bytes: int
    state_bytes: int
    aside_bytes: int


def update_price(
    optimizer: str,
    kernels: Kernels,
    groups: tuple[tuple[Shape, ...], ...],
    device: Device,
    stack: Stack,
    narrow_bytes: int = 0,
) -> UpdatePrice:
    """Return the price of updating parameters in float32.

    `groups` holds the shapes of the tensors of each parameter group; each group has launches of
    its own. With `narrow_bytes` per element a narrow copy is written too. InputError for an unknown
    optimizer, or one that has no such kernel.
    """
    rule = rules()[one_of("optimizer", optimizer, rules())]
    works = [
        work
        for group in groups
        for part in rule.parts
        if (taken := [shape for shape in group if rule.of(shape) is part])
        for work in update_works(part, kernels, taken, narrow_bytes)
    ]
    load = load_of(works, device, stack)
    shapes = [shape for group in groups for shape in group]
    own = [rule.of(shape).aside * size(shape) for shape in shapes]
    aside = {"fused": 0, "single": max(own)}.get(kernels, sum(own))
    kernel = float((kernel_seconds(load, FITTED).kernel * load.count).sum())
    host = float((load.launch_seconds * load.count).sum()) * FITTED.launch_factor
    return UpdatePrice(
        float(joined_seconds(kernel, host, device)),
        round(sum(work.count for work in works)),
        round(sum(work.bytes * work.count for work in works)),
        4 * sum(size(kept) for shape in shapes for kept in rule.kept(shape).values()),
        4 * aside,
    )


def update_prices(
    groups: tuple[tuple[Shape, ...], ...], device: Device, stack: Stack
) -> dict[tuple[str, Kernels], UpdatePrice]:
    """Return the price of the update by optimizer and form of its kernels, of those there are."""
    return {
        (name, kernels): update_price(name, kernels, groups, device, stack)
        for name, rule in rules().items()
        for kernels in get_args(Kernels)
        if kernels != "fused" or rule.fused
    }


def update_works(
    rule: Rule, kernels: Kernels, group: Sequence[Shape], narrow_bytes: int = 0
) -> Iterator[Work]:
    """Yield the kernels of one parameter group, many tensors spread evenly over launches.

    With `narrow_bytes` per element a narrow copy is written too. InputError where the optimizer has
    no such kernel.
    """
    if kernels == "fused" and not rule.fused:
        raise InputError(f"kernels: 'fused' with {rule.name}; expected 'combined' or the like")
    sizes = [size(shape) for shape in group]
    passes = rule.fused if kernels == "fused" else rule.separate
    for place, (read, written) in enumerate(passes):
        lists = read + written
        taken = TENSORS_OF_LAUNCH[max(read, 1)]  # what is written was read: ops work in place
        count = 1 if kernels == "combined" else -(-len(group) // taken)
        copied = narrow_bytes if place == len(passes) - 1 else 0
        for elements in sizes if kernels == "single" else [sum(sizes) / count] * count:
            yield Work((4 * lists + copied) * elements, lists * elements, kind="update")
    for product in (product for shape in group for product in rule.products(shape)):
        yield _product(*product)
    if kernels == "combined" and rule.norms:
        yield Work(0, count=rule.norms * len(group), kind="update")


def _product(rows: int, columns: int, depth: int) -> Work:
    """Return one matrix product of an update, whose operands and result are bfloat16."""
    bytes = 2 * (rows * depth + depth * columns + rows * columns)
    extents = Extents(1, rows, columns, depth, (rows, depth, columns))
    return Work(bytes, 0, 2.0 * rows * columns * depth, extents, "bfloat16")
