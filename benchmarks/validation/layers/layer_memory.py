"""What a step of layers keeps in memory, layer by layer, from forward to backward.

A list of layers (`cost/networks/`) runs on `LayerMemory` as it does on `Layers`. Each layer keeps
what its backward reads, as eager frameworks save it: a product or convolution its inputs, a norm
its input, ReLU and softmax their output, dropout a mask of a byte, a max pool its input and
indices of eight bytes, the loss its log-probabilities in float32. What one layer reads is what
the last one wrote, so a tensor that two of them keep counts once. Autocast keeps the narrow copy of
a weight until its backward, where the gradient is made narrow and then cast; embeddings, norms and
softmax leave float32, of which every product keeps a narrow copy of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.layers.precision import Precision
from benchmarks.validation.layers.scalings import Scaling
from policysearch.cost.gemm import Extents
from policysearch.cost.roofline import PassKind
from policysearch.cost.stacks import Stack

INDEX_BYTES = 8
"""Indices of tokens and of max pools are of 64 bits in torch."""

GLOBAL_POOL = 16
"""A pool that shrinks by more than this is an average over all places, which keeps no indices."""

Weights = Literal["float32", "cached", "halved", "pure"]
"""How parameters are stored: float32; float32 with narrow copies for the products that live until
their backward (autocast); narrow with float32 masters (Apex O2, FP16_Optimizer); narrow alone."""


@dataclass(frozen=True)
class Kept:
    """What a layer keeps until its backward, in bytes, `times` over.

    `layer` is its kind. `activations`, dropout `masks` and `copies` of weights; `passing`: what its
    backward needs for a moment, gradients of its input and output; `parameters`: elements that get
    gradients there.
    """

    layer: str
    activations: float = 0.0
    masks: float = 0.0
    copies: float = 0.0
    passing: float = 0.0
    parameters: float = 0.0
    times: float = 1.0


class LayerMemory(Layers):
    """Collects what the layers of a step keep.

    `gelu_tensors`: those that a GELU of several ops keeps beside its input.
    """

    def __init__(
        self, stack: Stack, precision: Precision, weights: Weights, gelu_tensors: int = 0
    ) -> None:
        super().__init__(stack, precision)
        self.weights = weights
        self.gelu_tensors = gelu_tensors
        self.kept: list[Kept] = []
        self._held = (0.0, False)
        self._width = precision.bytes
        self._stream = precision.bytes

    # the tensor at hand

    def _keep(self, layer: str, **parts: float) -> None:
        self.kept.append(Kept(layer, **parts, times=self.times))

    def _read(self, layer: str, elements: float, bytes: float) -> None:
        """Keep what is read, unless it is the last tensor and kept already.

        Under autocast the batch stays in float32 beside its cast.
        """
        if not self.kept and self.weights == "cached":
            self._keep("batch", activations=4 * elements)
        if self._held != (elements * bytes, True):
            self._keep(layer, activations=elements * bytes)
        self._held = (elements * bytes, True)

    def _write(self, elements: float, keeper: str = "", width: int = 0) -> None:
        """A new tensor, its elements as wide as the last one's unless given.

        `keeper`: the layer that makes it where it keeps it too.
        """
        self._width = width or self._width
        bytes = elements * self._width
        if keeper:
            self._keep(keeper, activations=bytes, passing=2 * bytes)
        self._held = (bytes, bool(keeper))

    @property
    def _norm_bytes(self) -> int:
        """Under autocast norms and softmax read and write float32."""
        return 4 if self.weights == "cached" else self.precision.bytes

    def _widen(self, elements: float) -> None:
        """A tensor that autocast makes in float32; what is added to it is too."""
        self._stream = self._norm_bytes
        self._write(elements, width=self._norm_bytes)

    def branch(self, elements: float) -> None:
        """What follows reads a tensor of so many elements that an earlier layer has kept."""
        kept = self._stream == self.precision.bytes  # else every reader keeps a cast of its own
        self._held, self._width = (elements * self.precision.bytes, kept), self._stream

    # layers

    def tensor(self, read: float, written: float, layer: str = "convolution") -> None:
        self._read(layer, read, self.precision.bytes)
        self._keep(layer, passing=(read + written) * self.precision.bytes)
        self._write(written, width=self.precision.bytes)

    def parameter(self, elements: float, tensors: float = 1) -> None:
        super().parameter(elements, tensors)
        self._keep("parameter", parameters=elements)

    def weight(self, elements: float, tensors: float = 1) -> None:
        self.parameter(elements, tensors)
        if self.weights == "cached":  # its narrow gradient takes the copy's place, then is cast
            copy = elements * self.precision.bytes
            self._keep("weight", copies=copy, passing=4 * elements)

    def elementwise(
        self, elements: float, forward: tuple[float, float] = (1, 1), backward: float = 3
    ) -> None:
        """Backward reads a gradient and writes one or two; what else it reads was kept."""
        for _ in range(int(backward - 1) // 2):
            self._write(elements, "elementwise")
        if backward < 3:
            self._write(elements)

    def residual(self, elements: float, fused: bool = False) -> None:
        self._write(elements, width=self._stream)

    def copy(self, elements: float) -> None:
        self._write(elements)

    def gelu(self, elements: float) -> None:
        own = elements * self._width
        self._read("gelu", elements, self._width)
        self._keep("gelu", activations=self.gelu_tensors * own, passing=2 * own)
        self._write(elements)

    def dropout(self, elements: float) -> None:
        self._keep("dropout", masks=elements, passing=2 * elements * self._width)
        self._write(elements)

    def pool(self, read: float, written: float) -> None:
        self._read("pool", read, self._width)
        if read <= GLOBAL_POOL * written:
            self._keep("pool", activations=written * INDEX_BYTES)
        self._write(written)

    def batch_norm(self, elements: float, relu: bool = True, add: bool = False) -> None:
        self.parameter(0, 2)
        self._read("norm", elements, self._width)
        self._write(elements, "relu" if relu else "")

    def instance_norm(self, elements: float) -> None:
        if not self.stack.composite_kernels:
            self._keep("norm", activations=2 * elements * 4)
        self.batch_norm(elements)

    def layer_norm(self, elements: float, width: int) -> None:
        self.parameter(2 * width, 2)
        self._read("norm", elements, self._norm_bytes)
        if not self.stack.composite_kernels:
            self._keep("norm", activations=2 * elements * self._norm_bytes)
        self._keep("norm", passing=2 * elements * self._norm_bytes)
        self._widen(elements)

    def softmax(self, elements: float) -> None:
        own = elements * self._norm_bytes
        self._keep("softmax", activations=own, passing=2 * own)
        self._write(elements, width=self._norm_bytes)

    def cross_entropy(self, logits: float) -> None:
        """Log-probabilities are kept; their gradient passes, and that of narrow logits."""
        narrow = self.precision.bytes if self.precision.bytes < 4 else 0
        self._keep("loss", activations=logits * 4, passing=logits * (4 + narrow))

    def product(
        self,
        batch: int,
        m: int,
        n: int,
        k: int,
        scaling: Scaling | None = None,
        gathered: int = 1,
    ) -> None:
        own = batch * self.precision.bytes
        self._keep("product", activations=own * (m + n) * k, passing=own * m * (k + n))
        self._write(batch * m * n, width=self.precision.bytes)

    def linear(
        self,
        rows: float,
        n_in: int,
        n_out: int,
        bias: bool = True,
        weight: bool = True,
        gathered: int = 1,
    ) -> None:
        self._read("linear", rows * n_in, self.precision.bytes)
        if bias:
            self.parameter(n_out)
        if weight:
            self.weight(n_in * n_out)
        self._keep("linear", passing=rows * (n_in + n_out) * self.precision.bytes)
        self._write(rows * n_out, width=self.precision.bytes)

    def embedding(self, tokens: float, width: int, rows: int) -> None:
        self.parameter(rows * width)
        self._keep("embedding", activations=tokens * INDEX_BYTES)
        self._widen(tokens * width)

    def recurrent(self, steps: int, batch: int, n_in: int, hidden: int, gates: int = 4) -> None:
        """Gates, cells and outputs of every step are kept."""
        own, width = self.precision.bytes, steps * batch * hidden
        self._read("recurrence", steps * batch * n_in, own)
        self.weight((n_in + hidden) * gates * hidden, 4)
        self._keep("recurrence", activations=width * (gates + 1) * own)
        self._write(width, "recurrence", width=own)

    # what takes time alone

    def move(
        self,
        read: float,
        written: float,
        bytes: int = 0,
        count: float = 1,
        launches: float = 1,
        kind: PassKind = "elementwise",
    ) -> None:
        """A pass over memory keeps nothing."""

    def wait(self, seconds: float) -> None:
        """The host's waiting keeps nothing."""

    def cast(self, elements: float, count: float = 1) -> None:
        """The layer that reads a cast tensor keeps it."""

    def quantise(self, elements: float, bytes: float, launches: int, fresh: bool = True) -> None:
        """The layer that reads a quantised tensor keeps it."""

    def single_product(
        self, e: Extents, moved: float, shifted: float = 0, count: float = 1
    ) -> None:
        """Its layer keeps its operands."""
