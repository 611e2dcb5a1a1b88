"""Layers of decoders as shapes alone: what each asks of a device, forward and backward.

Rows of 8-bit training are of decoders of up to 405B parameters on many devices.
Counts of passes over memory are those of the kernels that libraries have; where they differ between
stacks the stack's row says how.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.validation.narrow.precision import NarrowPrecision
from benchmarks.validation.narrow.scalings import Scaling
from policysearch.cost.gemm import Extents
from policysearch.cost.parallel.collectives import Kind
from policysearch.cost.roofline import PassKind, Work
from policysearch.cost.stacks import Stack
from policysearch.formats import format_named


@dataclass(frozen=True)
class Collective:
    """Exchanges of a tensor of so many bytes within a group of devices, `count` of them a step.

    `overlaps`: whether products that are cut in parts can hide them.
    """

    kind: Kind
    bytes: float
    count: float
    overlaps: bool = True


class Layers:
    """Collects the works of a step, layer by layer, for one stack and precision.

    Sizes are elements. `repeat` lets the following layers count several times.
    """

    def __init__(self, stack: Stack, precision: NarrowPrecision) -> None:
        self.stack = stack
        self.precision = precision
        self.works: list[Work] = []
        self.collectives: list[Collective] = []
        self.parameters = self.tensors = 0.0
        self.times = 1.0

    def repeat(self, times: float) -> None:
        """Count what follows `times` times."""
        self.times = times

    # what layers are made of

    def move(
        self,
        read: float,
        written: float,
        bytes: int = 0,
        count: float = 1,
        launches: float = 1,
        kind: PassKind = "elementwise",
    ) -> None:
        """A pass over memory, elements of `bytes` bytes each (the activations' unless given)."""
        moved = (read + written) * (bytes or self.precision.bytes)
        count *= self.times
        self.works.append(Work(moved, read + written, count=count, launches=launches, kind=kind))

    def single_product(self, e: Extents, moved: float) -> None:
        """One product that moves `moved` elements."""
        flops = 2.0 * e.batch * e.rows * e.columns * e.depth
        moved *= self.precision.bytes
        runs = self.precision.products
        self.works.append(Work(moved, 0, flops, e, runs, count=self.times))

    def weight(self, elements: float, tensors: float = 1) -> None:
        """A parameter that products read as it is stored."""
        self.parameter(elements, tensors)

    def parameter(self, elements: float, tensors: float = 1) -> None:
        """A parameter that no product reads."""
        self.parameters += elements * self.times
        self.tensors += tensors * self.times

    # elementwise layers

    def elementwise(
        self, elements: float, forward: tuple[float, float] = (1, 1), backward: float = 3
    ) -> None:
        """An op that a compiler fuses into its neighbours.

        `forward`: tensors read and written, `backward`: both together (0 for none of its own).
        """
        if not self.stack.elementwise_fusion:
            self.move(forward[0] * elements, forward[1] * elements)
            if backward:
                self.move((backward - 1) * elements, elements)

    def residual(self, elements: float, fused: bool = False) -> None:
        """The sum of two branches, and of the two gradients of what both have read."""
        if not fused:
            self.elementwise(elements, (2, 1), 0)
        self.move(2 * elements, elements)

    def copy(self, elements: float) -> None:
        """A change of layout that is no view, or a concatenation; and back."""
        self.move(elements, elements, count=2, kind="movement")

    # norms and losses

    def cross_entropy(self, logits: float) -> None:
        """Log-softmax and its gradient in float32."""
        self.move(logits, logits, 4, kind="reduction")
        self.move(2 * logits, logits, 4, kind="reduction")

    # products

    def linear(
        self,
        rows: float,
        n_in: int,
        n_out: int,
        bias: bool = True,
        weight: bool = True,
        gathered: int = 1,
    ) -> None:
        """[rows, n_in] times [n_in, n_out] and both gradients; no update if not `weight`."""
        m = round(rows)
        self.product(1, m, n_out, n_in, self.precision.scaling, gathered)
        if bias:
            self.move(m * n_out, 0, kind="reduction")
            self.parameter(n_out)
        if weight:
            self.weight(n_in * n_out)

    def product(
        self,
        batch: int,
        m: int,
        n: int,
        k: int,
        scaling: Scaling | None = None,
        gathered: int = 1,
    ) -> None:
        """[batch, m, k] times [batch, k, n] and the gradients of both; the second is a weight.

        With `scaling` the operands are quantised: both inputs and the gradient of the result, the
        first input before it is `gathered` from so many devices where the recipe can.
        """
        sizes = (m * n, m * k, n * k)
        for rows, columns, depth in ((m, n, k), (m, k, n), (n, k, m)):
            e = Extents(batch, rows, columns, depth, (m, n, k))
            if scaling is None:
                self.single_product(e, batch * sum(sizes))
                continue
            flops = 2.0 * batch * m * n * k
            narrow = format_named(scaling.format).bits / 8
            moved = narrow * (sum(sizes) - rows * columns) + 2 * rows * columns
            work = Work(batch * moved, 0, flops, e, scaling.format, rate=scaling.rate)
            self.works.append(replace(work, count=self.times))
        if scaling is not None:
            self.quantise(batch * (m * n), scaling, scaling.element_bytes)
            here = batch * m * k / (gathered if scaling.gathers_narrow else 1)
            self.quantise(here, scaling, scaling.element_bytes)
            weight = batch * (n * k) / self.precision.accumulation
            self.quantise(weight, scaling, scaling.weight_bytes, fresh=False)

    def quantise(self, elements: float, scaling: Scaling, bytes: float, fresh: bool = True) -> None:
        """Passes over a tensor that move so many bytes an element, none where none is launched.

        `fresh`: the tensor was made just before.
        """
        if scaling.launches:
            moved = bytes * elements, scaling.elements * elements
            work = Work(*moved, launches=scaling.launches, fresh=fresh, kind="reduction")
            self.works.append(replace(work, count=self.times))
