"""Tensor scaling as nodes: what the policy pass puts around a product of narrow operands.

Every recipe scales an operand along axes that its product sums over, or the whole of it, so the
scales leave the sum: per tensor and per row they are divided out in the epilogue (`descale`), per
block they are multiplied in again before the sum (the `_blocks` products). For convolutions a row
is an example or a channel, whichever the product keeps, and blocks run along the channels (fprop,
dgrad) or the examples (wgrad), as in Microsoft's microxcaling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from policysearch.formats import Format, Rounding, RoundingMode, format_named
from policysearch.graph import Node, Op
from policysearch.ops.amax import amax
from policysearch.ops.block_scale import (
    block_cast,
    dequantise,
    inverse_scale,
    mx_rceil_scale,
    mx_scale,
    nvfp4_scale,
)
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.four_over_six import BOUND, four_over_six
from policysearch.ops.scale import amax_history, delayed_scale, descale, scaled_cast, tensor_scale
from policysearch.ops.source import own, state
from policysearch.policy.scaling import BLOCKS, E8M0, SCALES, Scaling
from policysearch.products.product import check_scaled
from policysearch.values import InputError

NEAREST = Rounding(overflow="saturate")

# The axes each operand is summed over, the first of them the one that is cut into blocks.
_CONV_AXES = {
    "conv2d": ((1, 2, 3), (1, 2, 3)),
    "conv2d_dgrad": ((1, 2, 3), (0, 2, 3)),
    "conv2d_wgrad": ((0, 2, 3), (0, 2, 3)),
}


@lru_cache(maxsize=1024)
def _saturating_rounding(rounding: Rounding) -> Rounding:
    return replace(rounding, overflow="saturate")


@dataclass(frozen=True)
class Scaled:
    """One operand of a product: the node, the scale to divide out, and the scales per block.

    `cuts`: the axis and extent of a block, and the second ones where blocks are square. `shift` is
    what a gradient that meets it is multiplied by, instead of the product.
    """

    node: int
    scale: int | None = None
    block_scales: int | None = None
    cuts: tuple[int, ...] = ()
    shift: int | None = None


@dataclass(frozen=True)
class Asked:
    """How an operand is wanted: in a format below 16 bits, scaled by a recipe.

    `name` calls its state. `rounding` is that of the cast, which saturates; `mode` another than it
    has. `weight` and `gradient`: what the operand is, by which recipes differ.
    """

    format: str
    scaling: Scaling
    name: str
    rounding: Rounding
    mode: RoundingMode | None = None
    weight: bool = False
    gradient: bool = False

    @property
    def top(self) -> float:
        """What a float32 scale brings the largest value to."""
        return self.scaling.top or format_named(self.format).max

    @property
    def squares(self) -> bool:
        """Whether its blocks are square."""
        return self.weight and self.scaling.weights == "squares"

    @property
    def cast(self) -> Rounding:
        """Return how it is rounded into its format."""
        cast = _saturating_rounding(self.rounding)
        # To nearest, what is below half of the smallest number is always lost; by chance it is
        # there on average. NVFP4BlockScaling rounds gradients so, and these alone.
        if self.scaling.recipe == "nvfp4" and self.gradient:
            cast = replace(cast, mode="stochastic")
        return cast if self.mode is None else replace(cast, mode=self.mode)


class ScalingPass:
    """The scaling nodes of one graph: each tensor is scaled once per format and direction.

    With recipe "delayed" each operand has two states, `own` "<operand>.amax_history" [history]
    and "<operand>.scale" (); both start as zeros, which means scale 1. The operand is
    called after the parameter, or "<layer>.input" or "<layer>.grad". Their new values are updates
    of a step that has any: a forward pass alone leaves them, and so does a skipped step.
    """

    def __init__(self, b: Builder, trains: bool) -> None:
        self.b = b
        self.trains = trains
        self.outputs: dict[str, int] = {}
        self._made: dict[tuple[Any, ...], Scaled] = {}
        self._turned: dict[tuple[int, int], int] = {}
        self._names: dict[str, int] = {}
        self._delayed: list[tuple[int, int, int, int, str]] = []

    def operand(self, new: int, asked: Asked, node: Node, position: int) -> Scaled:
        """Return new node `new` scaled as asked, as operand `position` of `node`."""
        # One tensor has other scales where another product sums it over other axes: the weight of
        # fprop and of dgrad, under a recipe with a scale per row or block, is scaled twice.
        scaling, shape = asked.scaling, self.b.shape(new)
        axes = _axes(node, position, shape, scaling.recipe)
        along = tuple(sorted(_sides(node, position, shape))) if asked.squares else axes
        turned = scaling.hadamard and node.role == "wgrad"
        key = (new, asked.format, along, scaling, asked.mode, turned)
        if key in self._made:
            return self._made[key]
        with self.b.scope(layer=node.layer, role=node.role, source=node.source):
            value = self._turn(new, axes[0]) if turned else new
            if scaling.recipe in BLOCKS:
                by_row = scaling.tensor == "rows" and not (asked.weight or asked.gradient)
                cut = along if asked.squares else axes[:1]
                operand = self._blocks(value, asked, cut, axes if by_row else ())
            else:
                name = self._free_name(asked.name)
                scale = self._scale(new, asked, axes, name)
                fields: dict[str, Any] = {"format": asked.format, "rounding": asked.cast}
                step = scale if scaling.recipe == "shifted" else None
                scale = scale if step is None else self.b.emit(inverse_scale, step)
                cast = self.b.emit(scaled_cast, new, scale, **fields)
                operand = Scaled(cast, scale, shift=step)
                if scaling.recipe == "delayed":
                    self._record(new, scale, name)
        self._made[key] = operand
        return operand

    def shifted(self, gradient: int, shift: int, node: Node) -> int:
        """Return the gradient times the scale of the operand that it meets in `node`."""
        key = (gradient, shift)
        if key not in self._made:
            with self.b.scope(layer=node.layer, role=node.role, source=node.source):
                self._made[key] = Scaled(self.b.emit(scaled_cast, gradient, shift))
        return self._made[key].node

    def values(self, operand: Scaled, wanted: str, node: Node) -> int:
        """Return what a scaled copy stands for, in format `wanted`, as `node` reads it."""
        key = (operand, wanted)
        if key not in self._made:
            given = [i for i in (operand.block_scales, operand.scale) if i is not None]
            attrs = _cut_attrs(operand.cuts)
            with self.b.scope(layer=node.layer, role=node.role, source=node.source):
                made = self.b.emit(dequantise, operand.node, *given, attrs=attrs, format=wanted)
            self._made[key] = Scaled(made)
        return self._made[key].node

    def _turn(self, new: int, axis: int) -> int:
        if (new, axis) not in self._turned:
            # its result is a tensor in the format of what it turns
            fields: dict[str, Any] = {"format": self.b.nodes[new].format}
            self._turned[new, axis] = self.b.emit(
                OPS["hadamard"], new, attrs={"axis": axis}, **fields
            )
        return self._turned[new, axis]

    def product(self, node: Node, operands: Sequence[Scaled], **fields: Any) -> int:
        """Emit the product and what takes the scales out; `fields` are those of its result."""
        # sum_k (s a_k) (t b_k) = s t sum_k a_k b_k: a scale that is the same all along the sum is
        # divided out of the finished sum. That of a block is not, so the product itself reads it.
        inputs = [operand.node for operand in operands]
        op, attrs = node.op, dict(node.attrs)
        cut = [(i, o) for i, o in enumerate(operands) if o.block_scales is not None]
        if cut:
            op = self._over_blocks(node, operands, fields["accumulator"])
            attrs["blocks"] = tuple((i, *operand.cuts) for i, operand in cut)
            inputs += [o.block_scales for _, o in cut if o.block_scales is not None]
        scaled = [(i, o.scale) for i, o in enumerate(operands) if o.scale is not None]
        # with a scale to take out, the sum stays in the accumulator and `descale` rounds it once
        whole = {**fields, "format": "float32", "fused": True} if scaled else fields
        new = self.b.copy(node, inputs, op=op, attrs=tuple(attrs.items()), **whole)
        if not scaled:
            return new
        swap, axes = self._swaps(node, scaled)
        after = {**fields, "accumulator": "float32"}
        with self.b.scope(layer=node.layer, role=node.role, source=node.source):
            scales = [scale for _, scale in scaled]
            return self.b.emit(descale, new, *scales, attrs={"axes": axes, "swap": swap}, **after)

    def _over_blocks(self, node: Node, operands: Sequence[Scaled], accumulator: str) -> Op:
        """Return the product of operands in blocks; InputError where the accumulator has none."""
        formats = [format_named(self.b.nodes[operand.node].format) for operand in operands]
        found = [operand.block_scales for operand in operands]
        scales = [None if i is None else self.b.nodes[i].format for i in found]
        try:
            check_scaled(accumulator, formats, scales if node.op.name == "matmul" else (None,))
        except InputError as error:
            where = f"layer {node.layer!r}: accumulator {accumulator!r} with scales of blocks"
            raise InputError(f"{where}: {error}") from None
        return OPS[f"{node.op.name}_blocks"]

    def _free_name(self, name: str) -> str:
        """Return `name`, with a number from 2 where a layer multiplies several such tensors."""
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}{self._names[name]}"

    def updates(self) -> list[tuple[int, int]]:
        """Emit the new states and return (state, new value) pairs; the last nodes of the step."""
        if not self.trains:
            return []
        pairs = []
        for history, old, scale, largest, layer in self._delayed:
            new = self.b.emit(amax_history, history, largest, role="update", layer=layer)
            pairs += [(history, new), (old, scale)]
        return pairs

    def _scale(self, new: int, asked: Asked, axes: tuple[int, ...], name: str) -> int:
        row = asked.scaling
        attrs = {
            "maximum": asked.top,
            "margin": row.margin,
            "power_of_two": row.power_of_two,
        }
        if row.recipe == "shifted":
            attrs = {"maximum": asked.top, "margin": row.margin, "divides": True}
        if row.recipe != "delayed":
            over = {"axes": axes} if axes else {}
            return self.b.emit(tensor_scale, self.b.emit(amax, new, attrs=over), attrs=attrs)
        history = self._state(f"{name}.amax_history", (row.history,))
        old = self._state(f"{name}.scale", ())
        # a step's scales depend on states alone, so they can all be computed in one launch
        return self.b.emit(
            delayed_scale, history, old, attrs={**attrs, "amax": row.amax}, role="update"
        )

    def _state(self, name: str, shape: tuple[int, ...]) -> int:
        return self.b.emit(state, attrs={"shape": shape}, role="input", name=own(name))

    def _record(self, new: int, scale: int, name: str) -> None:
        """Note the amax of this step, an output so that it is taken while the tensor is there."""
        if not self.trains:
            return
        history, old = self.b.nodes[scale].inputs
        largest = self.b.emit(amax, new)
        self.outputs[f"amax:{name}"] = largest
        self._delayed.append((history, old, scale, largest, self.b.nodes[scale].layer))

    def _blocks(
        self, new: int, asked: Asked, axes: tuple[int, ...], rows: tuple[int, ...]
    ) -> Scaled:
        recipe, element = asked.scaling.recipe, format_named(asked.format)
        block = BLOCKS[recipe]
        cuts = tuple(number for axis in axes for number in (axis, block))
        largest = new
        for axis in axes:
            largest = self.b.emit(amax, largest, attrs={"axes": (axis,), "block": block})
        fields: dict[str, Any] = {"format": element.name, "rounding": asked.cast}
        along = _cut_attrs(cuts)
        if recipe == "nvfp4":
            chosen = asked.scaling.four_over_six and not asked.gradient
            scales, tensor = self._two_levels(new, largest, element, rows, along if chosen else {})
            cut = self.b.emit(block_cast, new, scales, tensor, attrs=along, **fields)
            return Scaled(cut, tensor, scales, cuts)
        if recipe == "blocks":
            of: dict[str, Any] = {"maximum": asked.top}
            of["power_of_two"] = asked.scaling.power_of_two
            # recipe_common.cuh, compute_scale_from_types: the largest number of the tensor's format
            if self.b.nodes[new].format == "bfloat16":
                of["limit"] = format_named("bfloat16").max
            scales = self.b.emit(tensor_scale, largest, attrs=of)
            attrs = {**along, "multiplies": True}
            cut = self.b.emit(block_cast, new, scales, attrs=attrs, **fields)
            return Scaled(cut, None, self.b.emit(inverse_scale, scales), cuts)
        # OCP MX v1.0, 6.3: 2**(floor(log2 amax) - emax). The top of a block
        # may lie above the element's largest number and saturates; rounded up, nothing does.
        rule, of = mx_scale, {"emax": element.max_exponent}
        if recipe == "mx_rceil":
            rule, of = mx_rceil_scale, {"maximum": element.max}
        scales = self.b.emit(rule, largest, attrs=of, format=E8M0)
        return Scaled(
            self.b.emit(block_cast, new, scales, attrs=along, **fields), None, scales, cuts
        )

    def _two_levels(
        self,
        new: int,
        largest: int,
        element: Format,
        rows: tuple[int, ...],
        chosen: Mapping[str, Any],
    ) -> tuple[int, int]:
        """Return the scales of the blocks and that of the tensor, or of each of its rows.

        `chosen`: how blocks are cut whose scale is the better of two.
        """
        # Two levels, since float8_e4m3fn scales reach from 2**-9 to 448 alone: the scale of the
        # tensor brings its largest block to the top of both formats, those of blocks follow it.
        top = BOUND if chosen else format_named(SCALES["nvfp4"]).max
        over = {"axes": rows} if rows else {}
        whole = self.b.emit(amax, new, attrs=over)
        tensor = self.b.emit(tensor_scale, whole, attrs={"maximum": top * element.max})
        stored: dict[str, Any] = {"format": SCALES["nvfp4"], "rounding": NEAREST}
        if chosen:
            given = (new, largest, tensor, whole)
            return self.b.emit(four_over_six, *given, attrs=dict(chosen), **stored), tensor
        attrs = {"maximum": element.max}
        return self.b.emit(nvfp4_scale, largest, tensor, attrs=attrs, **stored), tensor

    def _swaps(
        self, node: Node, scaled: list[tuple[int, int]]
    ) -> tuple[tuple[bool, ...], tuple[int, int]]:
        """Return, per scale, whether its two axes trade places to line up with the result's."""
        # Scales have extent 1 where their operand is summed over. Those of a first operand that is
        # summed over its columns are a column, one per row of the result, and fit; a transposed
        # operand's, and those of a convolution's filters, lie along the other axis.
        if not any(self.b.shape(scale) for _, scale in scaled):
            return (False,) * len(scaled), (0, 1)
        rows, columns = (0, 1) if node.op.name in _CONV_AXES else (-2, -1)
        ndim = len(node.shape)
        wanted = (columns % ndim, rows % ndim)
        swap = tuple(
            bool(self.b.shape(scale)) and wanted[i] not in _axes(node, i, node.shape, "rowwise")
            for i, scale in scaled
        )
        return swap, (rows, columns)


def _cut_attrs(cuts: tuple[int, ...]) -> dict[str, Any]:
    if not cuts:
        return {}
    attrs: dict[str, Any] = {"axis": cuts[0], "block": cuts[1]}
    return {**attrs, "across": cuts[2:]} if cuts[2:] else attrs


def _axes(node: Node, position: int, shape: tuple[int, ...], recipe: str) -> tuple[int, ...]:
    """Return the axes of the operand that are summed over; none where they do not matter."""
    if recipe in ("current", "shifted", "delayed"):
        return ()
    if node.op.name in _CONV_AXES and node.attributes.get("groups", 1) == 1:
        return _CONV_AXES[node.op.name][position]
    if node.op.name == "matmul":
        # [rows, depth] by [depth, columns], either of them transposed: the depth is summed over
        attrs = node.attributes
        first = attrs.get("transpose_a") if position == 0 else not attrs.get("transpose_b")
        return (len(shape) - 2,) if first else (len(shape) - 1,)
    raise InputError(
        f"scaling.recipe {recipe!r} with op {node.op.name!r} of layer "
        f"{node.layer!r}: unknown contraction; expected current or delayed"
    )


def _sides(node: Node, position: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the two axes along which a weight is cut into squares."""
    if node.op.name in _CONV_AXES:
        return 0, 1
    return len(shape) - 2, len(shape) - 1
