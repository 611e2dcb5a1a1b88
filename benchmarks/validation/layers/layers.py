"""Layers of a training step as shapes alone: what each asks of a device, forward and backward.

A network that nothing here trains is a list of these layers (`benchmarks/validation/networks/`).
Counts of passes over memory are those of the kernels that libraries have; where they differ between
stacks the stack's row says how.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.validation.layers.precision import Precision
from benchmarks.validation.layers.scalings import Scaling
from policysearch.cost.gemm import Extents
from policysearch.cost.parallel.collectives import Kind
from policysearch.cost.roofline import SHIFT_INSTRUCTIONS, SHIFT_LAUNCHES, PassKind, Work
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


CHAIN = {"layer_norm": 5, "instance_norm": 4, "gelu": 8}
"""Elementwise kernels of a composite forward where the stack has none for it; assumed."""


class Layers:
    """Collects the works of a step, layer by layer, for one stack and precision.

    Sizes are elements. `repeat` lets the following layers count several times.
    """

    def __init__(self, stack: Stack, precision: Precision) -> None:
        self.stack = stack
        self.precision = precision
        self.works: list[Work] = []
        self.collectives: list[Collective] = []
        self.parameters = self.tensors = 0.0
        self.times = 1.0
        self.optimizer = ""
        self.accumulation = 1

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

    def bias(self, elements: float, width: int) -> None:
        """A bias added in a pass of its own, and the sum that is its gradient."""
        self.elementwise(elements, (1, 1), 0)
        self.move(elements, 0, kind="reduction")
        self.parameter(width)

    def wait(self, seconds: float) -> None:
        """Work of the host that the device has to wait for."""
        self.works.append(Work(0, launches=0, host_seconds=seconds))

    def cast(self, elements: float, count: float = 1) -> None:
        """A change between float32 and the activations' format, where the step is mixed."""
        if self.precision.mixed:
            bytes = elements * (4 + self.precision.bytes)
            self.works.append(Work(bytes, 2 * elements, count=count * self.times, kind="movement"))

    def single_product(
        self, e: Extents, moved: float, shifted: float = 0, count: float = 1
    ) -> None:
        """One product that moves `moved` elements, `shifted` more to NHWC and back in NCHW."""
        flops = 2.0 * e.batch * e.rows * e.columns * e.depth
        runs = self.precision.convolutions if e.convolution else self.precision.products
        bytes = self.precision.bytes
        if self.stack.layout == "NHWC":
            shifted = 0
        shift = (shifted * bytes, SHIFT_INSTRUCTIONS * shifted)
        launches = 1 + (SHIFT_LAUNCHES if shifted and runs != "float32" else 0)
        count *= self.times
        self.works.append(Work(moved * bytes, 0, flops, e, runs, *shift, count, launches))

    def weight(self, elements: float, tensors: float = 1) -> None:
        """A parameter: its cast for the products and that of its gradient, and its update."""
        self.parameter(elements, tensors)
        self.cast(elements, 2)

    def parameter(self, elements: float, tensors: float = 1) -> None:
        """A parameter that no product reads."""
        self.parameters += elements * self.times
        self.tensors += tensors * self.times

    def tensor(self, read: float, written: float, layer: str = "convolution") -> None:
        """A layer's tensors, in elements; for `benchmarks/validation/layers/layer_memory.py`."""

    def branch(self, elements: float) -> None:
        """The next layer reads what an earlier one has read; for `layer_memory.py`."""

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

    def relu(self, elements: float) -> None:
        self.elementwise(elements)

    def residual(self, elements: float, fused: bool = False) -> None:
        """The sum of two branches, and of the two gradients of what both have read."""
        if not fused:
            self.elementwise(elements, (2, 1), 0)
        self.move(2 * elements, elements)

    def copy(self, elements: float) -> None:
        """A change of layout that is no view, or a concatenation; and back."""
        self.move(elements, elements, count=2, kind="movement")

    def gelu(self, elements: float) -> None:
        if self.stack.composite_kernels:
            self.elementwise(elements)
        else:
            self._chain(elements, CHAIN["gelu"], self.precision.bytes)

    def dropout(self, elements: float) -> None:
        """A mask of one byte each, kept for the way back."""
        byte = elements / self.precision.bytes
        if self.stack.elementwise_fusion:
            self.move(byte, byte)
            return
        self.move(elements, elements + byte)
        self.move(elements + byte, elements)
        if not self.stack.composite_kernels:
            self.move(elements, elements, count=2)

    def _chain(self, elements: float, kernels: int, bytes: int) -> None:
        """A composite op by op: a tensor read and written each forward, two read each backward."""
        self.move(elements, elements, bytes, count=kernels)
        self.move(2 * elements, elements, bytes, count=kernels)

    def pool(self, read: float, written: float) -> None:
        self.move(read, written, kind="movement")
        self.move(2 * written, read, kind="movement")

    # norms and losses

    def batch_norm(self, elements: float, relu: bool = True, add: bool = False) -> None:
        """Statistics and application forward; two sums, then the gradient, backward."""
        self.parameter(0, 2)
        fused = self.stack.norm_fusion and self.precision.activations != "float32"
        forward = (2 + (add and fused)) * elements
        self.move(forward, elements, kind="norm")
        self.move(4 * elements, (1 + (add and fused)) * elements)
        if add:
            self.residual(elements, fused)
        if relu and not fused:
            self.relu(elements)

    def instance_norm(self, elements: float) -> None:
        """As batch norm, but op by op in float32 where the stack has no kernel for composites."""
        if self.stack.composite_kernels:
            self.batch_norm(elements)
            return
        self.parameter(0, 2)
        self._chain(elements, CHAIN["instance_norm"], 4)
        self.cast(elements, 4)
        self.relu(elements)

    def layer_norm(self, elements: float, width: int) -> None:
        self.parameter(2 * width, 2)
        in_float32 = self.stack.float32_norms and not self.stack.elementwise_fusion
        if not self.stack.composite_kernels:
            self._chain(elements, CHAIN["layer_norm"], 4)
        else:
            bytes = 4 if in_float32 else 0
            self.move(elements, elements, bytes, kind="norm")
            self.move(2 * elements, elements, bytes, kind="norm")
            self.move(2 * elements, 0, bytes, kind="norm")
        if in_float32:
            self.cast(elements, 4)

    def softmax(self, elements: float) -> None:
        in_float32 = self.stack.float32_norms and not self.stack.elementwise_fusion
        bytes = 4 if self.stack.float32_norms else 0
        self.move(elements, elements, bytes, kind="reduction")
        self.move(2 * elements, elements, bytes, kind="reduction")
        if in_float32:
            self.cast(elements, 4)

    def cross_entropy(self, logits: float) -> None:
        """Log-softmax and its gradient in float32."""
        self.cast(logits, 2)
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
            if not self.stack.composite_kernels:
                self.elementwise(m * n_out, (1, 1), 0)
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
            self.quantise(batch * (m * n), scaling.element_bytes, scaling.launches)
            here = batch * m * k / (gathered if scaling.gathers_narrow else 1)
            self.quantise(here, scaling.element_bytes, scaling.launches)
            weight = batch * (n * k) / self.precision.accumulation
            self.quantise(weight, scaling.weight_bytes, scaling.launches, fresh=False)

    def quantise(self, elements: float, bytes: float, launches: int, fresh: bool = True) -> None:
        """Passes over a tensor that move `bytes` for each element, launches 0 for none.

        `fresh`: the tensor was made just before.
        """
        if launches:
            work = Work(bytes * elements, 3 * elements, launches=launches, fresh=fresh)
            self.works.append(replace(work, count=self.times))

    def embedding(self, tokens: float, width: int, rows: int) -> None:
        """A gather from float32 rows; backward zeros, then sums of rows, in float32.

        Where the stack works op by op, gradients of equal rows are gathered and summed first.
        """
        elements, own = tokens * width, self.precision.bytes
        self.parameter(rows * width)
        count = self.times
        self.works.append(Work(elements * (4 + own), 2 * elements, count=count))
        moved = elements * (own + 8) + rows * width * 4
        self.works.append(Work(moved, 3 * elements + rows * width, count=count))
        if not self.stack.composite_kernels:
            self.move(elements, elements, 4, count=4)

    def recurrent(self, steps: int, batch: int, n_in: int, hidden: int, gates: int = 4) -> None:
        """A layer of LSTM (4 gates) or GRU (3): products over all inputs, then step by step."""
        width, cells = gates * hidden, self.stack.cell_kernels
        self.product(1, steps * batch, width, n_in)
        moved = batch * hidden + batch * width + hidden * width
        packed = (batch, hidden, width)
        self.single_product(Extents(1, batch, width, hidden, packed), moved, count=steps)
        self.single_product(Extents(1, batch, hidden, width, packed), moved, count=steps)
        whole = steps * batch * (hidden + width) + hidden * width
        self.single_product(
            Extents(1, hidden, width, steps * batch, (steps * batch, hidden, width)), whole
        )
        self.weight((n_in + hidden) * width, 4)
        if cells == 1:
            self.move((width + hidden) * batch, (2 * hidden + width) * batch, count=steps)
            self.move(2 * (width + hidden) * batch, (hidden + width) * batch, count=steps)
        else:
            share = width * batch / cells
            self.move(3 * share, 2 * share, count=3 * steps * cells)
