"""What the rules of an import work with: tensors as nodes, seen under torch's shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op, Shape, size
from policysearch.importers.program import (
    COMPLEX,
    FLOATS,
    MEETING,
    TRUTHS,
    WHOLES,
    Constant,
    Program,
    Ref,
    resolved,
)
from policysearch.nn.model import DRAWN, DROPPED, WRITTEN, Attention, emit_data
from policysearch.ops.builder import Builder, changed_node
from policysearch.ops.composite import FLOAT32_ALONE
from policysearch.ops.draws import like
from policysearch.ops.elementwise import scale
from policysearch.ops.masks import masked_fill
from policysearch.ops.reduce import broadcast_to
from policysearch.ops.shape import reshape, stop_gradient, transpose
from policysearch.ops.source import (
    BACK,
    IN_PLACE,
    INSIDE,
    NUMBER,
    WHOLE,
    buffer,
    data,
    is_whole,
    own,
    parameter,
)
from policysearch.values import InputError

STORED = (parameter, buffer, data)
"""What a step reads in float32 unless a policy stores it otherwise."""

FILLED: Mapping[float, str] = MappingProxyType({1.0: own("one"), 0.0: own("zero")})
"""Scalar constants that every imported model has, by value."""


@dataclass(frozen=True)
class Tensor:
    """A value of torch's `shape`: that of node `id`, in the same order of elements.

    The node may have another shape, so that a view costs nothing until its shape is needed.
    `swapped` says that the node has the last two axes of `shape` in the other order.
    """

    id: int
    shape: Shape
    swapped: bool = False


@dataclass(frozen=True)
class Complex:
    """Complex numbers: `parts` is [..., 2], real parts and imaginary ones, as torch stores them."""

    parts: Tensor

    @property
    def shape(self) -> Shape:
        return self.parts.shape[:-1]


@dataclass(frozen=True)
class Selection:
    """What a `mask` [n] of the step chooses of `rows` [n, ...] (`selections.py`)."""

    rows: Tensor
    mask: Tensor

    @property
    def id(self) -> int:
        return self.rows.id

    @property
    def shape(self) -> Shape:
        return self.rows.shape


Rule = Callable[..., Any]
"""rule(tracer, *arguments, **options): a Tensor, or a tuple of them, for a call of a torch op."""


class Tracer:
    """Emits the nodes of a program for one batch size."""

    def __init__(
        self,
        b: Builder,
        program: Program,
        fed: Mapping[str, int],
        batch: int,
        training: bool,
        attention: Attention = WRITTEN,
    ) -> None:
        self.b, self.training, self.batch = b, training, batch
        self.attention = attention
        self.statistics: dict[str, int] = {}
        self.path, self.kind = "", FLOATS
        self._fed, self._names = fed, dict(program.arrays)
        self._constants = {constant.name: constant for constant in program.constants}
        self._values: dict[str, Any] = {}
        self._masks = self._draws = self.pinned = 0
        self._following: dict[int, str] = {}
        self._made: dict[int, Shape] = {}
        self.repeated: Collection[Tensor] = ()
        """What the call under way reads more than once."""
        self._truths: set[int] = set()
        self._full: set[int] = set()

    def value(self, name: str) -> Any:
        """Return what is called `name`; an array, an input or a constant on its first use."""
        if name not in self._values:
            self._values[name] = self._source(name)
        return self._values[name]

    def keep(self, name: str, value: Any, kind: str = FLOATS) -> None:
        """Call `value`, of a kind of KINDS, so from now on."""
        self._values[name] = value
        for x in _tensors(value):
            self._made.setdefault(x.id, x.shape)
        if kind == TRUTHS:
            self._truths |= {x.id for x in (value if isinstance(value, tuple) else (value,))}

    def argument(self, value: Any) -> Any:
        """Return an argument of a call with its references and extents filled in."""
        if isinstance(value, Ref):
            return self.value(value.name)
        if isinstance(value, tuple):
            return tuple(self.argument(item) for item in value)
        return resolved(value, self.batch)

    def settled(self, arguments: Any) -> Any:
        """Return arguments of a call, draws that `follow` others in the format of these."""
        following = [x for x in _tensors(arguments) if x.id in self._following]
        others = [x for x in _tensors(arguments) if x.id not in self._following]
        floats = [x for x in others if not self.is_whole(x)]
        if not following or not floats:
            return arguments
        formats = (self._values.get(self._following[x.id]) for x in following)
        known = (y if isinstance(y, Tensor) else floats[0] for y in formats)
        drawn = {x: self.emit(like, y, x) for x, y in zip(following, known, strict=True)}
        return _replacement(arguments, drawn)

    def followed(self, arguments: Any) -> str | None:
        """Return what these, if only such draws, have the format of: "" is what they will meet."""
        formats = [self._following.get(x.id) for x in _tensors(arguments)]
        known = [name for name in formats if name is not None]
        return max(known) if known and len(known) == len(formats) else None

    def follow(self, x: Any, format_of: str = "") -> None:
        """Have draws, or what is computed of them alone, take the format of what they meet.

        Or that of the value called `format_of`.
        """
        self._following |= {part.id: format_of for part in _tensors(x)}

    def _source(self, name: str) -> Any:
        if name in self._constants:
            constant = self._constants[name]
            value = self._constant(constant)
            return Complex(value) if constant.kind == COMPLEX else value
        known = self._names.get(name, name)
        if known not in self._fed:
            raise InputError(f"{name}: made anew in forward, of no input; make it in __init__")
        node = self._fed[known]
        return Tensor(node, self.b.shape(node))

    def _constant(self, constant: Constant) -> Tensor:
        source = emit_data(
            self.b, constant.name, constant.shape, whole=constant.kind in (WHOLES, TRUTHS)
        )
        tensor = Tensor(source, constant.shape)
        axis = constant.batch_axis
        if axis is not None:
            times = resolved(constant.times, self.batch)
            shape = (*constant.shape[:axis], times, *constant.shape[axis + 1 :])
            tensor = Tensor(self.emit_move(broadcast_to, source, {"shape": shape}), shape)
        if constant.kind == TRUTHS:
            self._truths.add(tensor.id)
        if constant.kind == MEETING:
            self.follow(tensor, constant.format_of)
        return tensor

    def stand_in(self, name: str, shape: Shape) -> Tensor:
        """Return a source in place of the result of the call `name`, which cannot be imported."""
        return Tensor(emit_data(self.b, own(f"in place of {name}"), shape), shape)

    def filled(self, value: float, shape: Shape) -> int:
        """Return a node of this shape full of `value`."""
        number = self.number(value)
        return self.emit(broadcast_to, number, shape=shape).id if shape else number.id

    def full_like(self, value: float, x: Tensor, dtype: Any = None) -> Tensor:
        """Return a tensor full of `value`; without a dtype, in the format that a policy gives x."""
        if dtype is not None or not self.is_trained(x):
            return Tensor(self.filled(value, x.shape), x.shape)
        everywhere = Tensor(self.filled(1.0, x.shape), x.shape)
        result = self.emit(masked_fill, x, everywhere, value=value)
        self._full.add(result.id)
        return result

    def is_trained(self, x: Tensor, *, by_gradients: bool = False) -> bool:
        """Return whether x depends on a parameter; what is full of one number does not.

        `by_gradients`: on one that has gradients of it.
        """
        waiting, visited = list({x.id} - self._full), set(self._full)
        while waiting:
            node = self.b.nodes[waiting.pop()]
            if node.op.name == "parameter":
                return True
            if by_gradients and node.op is stop_gradient:
                continue
            waiting += [i for i in node.inputs if i not in visited]
            visited.update(node.inputs)
        return False

    def is_stored(self, x: Tensor) -> bool:
        """Return whether x is a parameter, or one that was only moved."""
        node = self.b.nodes[x.id]
        while node.op.kind == "move":
            node = self.b.nodes[node.inputs[0]]
        return node.op.name == "parameter"

    def stored_in(self, x: Tensor) -> None:
        """Have what was computed of two tensors take the format of the first: x took its place.

        What a mask chose of two has that already.
        """
        node = self.b.nodes[x.id]
        floats = [not is_whole(self.b.nodes[i]) for i in node.inputs]
        if sum(floats) > 1 and floats[0]:
            self.b.nodes[x.id] = changed_node(node, attrs=(*node.attrs, (IN_PLACE, True)))

    def widened_at(self, x: Tensor) -> int | None:
        """Return the number of the nearest cast to float32 of the user's own that x depends on."""
        waiting, visited = [x.id], {x.id}
        for i in waiting:
            attributes = self.b.nodes[i].attributes
            if NUMBER in attributes:
                return int(attributes[NUMBER])
            new = [j for j in self.b.nodes[i].inputs if j not in visited]
            visited.update(new)
            waiting += new
        return None

    def is_float32(self, node: int) -> bool:
        """Return whether a node is float32 under autocast: stored, cast to it or of its ops.

        What promotes is so where one of its inputs is.
        """
        waiting, visited = [node], set[int]()
        while waiting:
            read = self.b.nodes[waiting.pop()]
            if read.id in visited or BACK in read.attributes:
                continue
            visited.add(read.id)
            cast, wide = NUMBER in read.attributes, read.op.placement == "fp32"
            if cast or wide or read.op in STORED or read.source == FLOAT32_ALONE:
                return True
            if read.op.placement == "promote":
                waiting += read.inputs
        return False

    def is_mask(self, x: Tensor) -> bool:
        """Return whether x holds truth values."""
        return x.id in self._truths

    def is_whole(self, x: Tensor) -> bool:
        """Return whether x holds whole numbers or truth values, which nothing rounds."""
        return is_whole(self.b.nodes[x.id])

    def emit(self, op: Op, *inputs: Tensor, source: str = "", **attrs: Any) -> Tensor:
        """Emit `op` on tensors in their own shapes; `source` names another op for the op lists."""
        return self.emit_nodes(op, *(self.full(x) for x in inputs), source=source, **attrs)

    def emit_nodes(self, op: Op, *nodes: int, source: str = "", **attrs: Any) -> Tensor:
        """Emit `op` on nodes as they are."""
        node = self.b.emit(op, *nodes, attrs=attrs, source=source or op.name)
        return Tensor(node, self.b.shape(node))

    def whole(self, op: Op, *inputs: Tensor, **attrs: Any) -> Tensor:
        """Emit `op`, whose results are whole numbers or truth values, whatever its inputs are."""
        nodes = [self.full(x) for x in inputs]
        node = self.b.emit(op, *nodes, attrs=attrs, source=op.name, role="input")
        return Tensor(node, self.b.shape(node))

    def number(self, value: float) -> Tensor:
        """Return a tensor of no axes that holds `value`."""
        if value not in FILLED:
            return self.pointwise(scale, self.number(1.0), factor=float(value))
        name = FILLED[value]
        if name not in self._values:
            self._values[name] = Tensor(emit_data(self.b, name, ()), ())
        return self._values[name]  # type: ignore[no-any-return]

    def pointwise(self, op: Op, x: Tensor, **attrs: Any) -> Tensor:
        """Emit `op` element by element, in whatever shape the node has."""
        node = self.b.emit(op, x.id, attrs=attrs, source=op.name)
        return replace(x, id=node)

    def full(self, x: Tensor) -> int:
        """Return a node of exactly x's shape."""
        return self.shaped(x, x.shape)

    def shaped(self, x: Tensor, shape: Shape) -> int:
        """Return a node with x's elements in this shape."""
        read = self.straight(x)
        if self.b.shape(read.id) == tuple(shape):
            return read.id
        node = self.emit_move(reshape, read.id, {"shape": tuple(shape)})
        as_made = x.shape == self._made.get(x.id)  # no view of torch's
        if read is x and (as_made or x in self.repeated):
            self.b.unseen.add(node)
        return node

    def emit_move(self, op: Op, node: int, attrs: dict[str, Any]) -> int:
        """Emit an op that moves values: whole numbers stay such."""
        role = {"role": "input"} if is_whole(self.b.nodes[node]) else {}
        return self.b.emit(op, node, attrs=attrs, source=op.name, **role)

    def rows(self, x: Tensor, features: int = 0) -> int:
        """Return a node [rows, features] of x's elements, by default with its last axis whole."""
        features = features or x.shape[-1]
        return self.shaped(x, (size(x.shape) // features, features))

    def matrices(self, x: Tensor) -> int:
        """Return a node [count, rows, columns] of x's matrices, `swapped` as x is."""
        *lead, rows, columns = x.shape
        if x.swapped:
            rows, columns = columns, rows
        shape = (size(tuple(lead)), rows, columns)
        node = self.shaped(Tensor(x.id, (*lead, rows, columns)), shape)
        if x.swapped:  # torch has a view with its axes swapped
            self.b.unseen.discard(node)
        return node

    def view(self, x: Tensor, shape: Shape) -> Tensor:
        """Return x under another shape; nothing is emitted unless its axes are swapped."""
        return Tensor(self.straight(x).id, tuple(shape))

    def straight(self, x: Tensor) -> Tensor:
        """Return x with its last two axes in the order of its shape."""
        if isinstance(x, Complex):
            raise InputError("complex numbers; give it their real or imag part")
        if isinstance(x, Selection):
            raise InputError("as many rows as a mask chooses; expected a number that no value says")
        if not x.swapped:
            return x
        *lead, rows, columns = x.shape
        attrs = {
            "split": (size(tuple(lead)), columns, rows),
            "axes": (0, 2, 1),
            "shape": x.shape if len(x.shape) < 4 else (size(tuple(lead)), rows, columns),
        }
        return Tensor(self.emit_move(transpose, x.id, attrs), x.shape)

    def list_under(self, source: str, start: int) -> None:
        """Put all nodes from `start` on in the op list of `source`: torch calls them as one op."""
        self.b.nodes[start:] = [changed_node(node, source=source) for node in self.b.nodes[start:]]

    def mask(self, shape: Shape, share: float, *, inside: bool = False) -> int:
        """Return the source of a dropout mask: fed anew in every step, whatever the policy.

        `inside`: the kernel that drops draws it itself.
        """
        self._masks += 1
        attrs = {"shape": shape, DROPPED: share, **({INSIDE: True} if inside else {})}
        name = own(f"dropout mask {self._masks}")
        return self.b.emit(data, attrs=attrs, name=name, role="input")

    def draw(self, shape: Shape, kind: str, *numbers: float, whole: bool = False) -> Tensor:
        """Return values that are drawn anew in every step, whatever the policy (`DRAWN`)."""
        self._draws += 1
        attrs = {"shape": shape, DRAWN: (kind, *numbers), **({WHOLE: True} if whole else {})}
        name = own(f"draw {self._draws}")
        return Tensor(self.b.emit(data, attrs=attrs, name=name, role="input"), shape)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument or a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _replacement(value: Any, others: Mapping[Tensor, Tensor]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_replacement(part, others) for part in value)
    return others.get(value, value) if isinstance(value, Tensor) else value


def refuse(what: str, hint: str) -> InputError:
    """Return the error of a rule that cannot do what a call asks for."""
    return InputError(f"{what}; {hint}")
