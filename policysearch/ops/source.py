"""Sources (values fed from outside) and the cast every format change goes through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape
from policysearch.ops.builder import Builder


def _declared_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return tuple(attrs["shape"])


def _fed_value(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    raise AssertionError("a source is fed, not computed")


def _source(name: str) -> Op:
    return Op(name, _declared_shape, _fed_value, flops=lambda i, o, a: 0, kind="source")


def own(name: str) -> str:
    """Return the name of a source that is not the net's: nothing of a net can be called so.

    Arguments of a forward pass are identifiers, and torch has no module and no parameter whose name
    is empty, so that no path of names begins with a dot.
    """
    return f".{name}"


LOSS_SCALE, INVERSE_SCALE = own("loss_scale"), own("inverse_scale")
LEARNING_RATE, STEP_NUMBER, TARGETS = own("learning_rate"), own("step"), own("targets")
MOMENTUM, MOMENTUM_SHARE = own("momentum"), own("momentum_share")
"""What the trainer feeds besides the inputs of the net. The share is 1 - momentum."""

AVERAGE = ".ema"
"""What follows the name of a parameter in that of its moving average."""

RATE_FACTOR = "rate_factor"
"""The attribute of a source that holds the learning rate of a group of parameters: its factor."""

INSIDE = "inside"
"""Attribute of a source that the kernel which reads it draws itself: it is never stored."""

WHOLE = "whole"
"""The attribute of a data node that holds whole numbers or truth values."""


def is_whole(node: Node) -> bool:
    """Return whether a node holds whole numbers or truth values, fed or made of such.

    They say which rows, which classes, what is masked: no policy rounds them.
    """
    fed = node.op.kind == "source"
    return node.role == "input" and (not fed or bool(node.attributes.get(WHOLE)))


def is_rate(node: Node) -> bool:
    """Return whether a node is the learning rate, of all parameters or of a group."""
    return node.name == LEARNING_RATE or RATE_FACTOR in node.attributes


def is_number(node: Node) -> bool:
    """Return whether a node is a number of the update that a schedule moves."""
    return is_rate(node) or node.name in (MOMENTUM, MOMENTUM_SHARE)


data = _source("data")
parameter = _source("parameter")
state = _source("state")
"""Optimizer state: kept from step to step like parameters."""
gradient_buffer = _source("gradient_buffer")
"""The gradient of a parameter, summed over the micro-batches of a step so far."""
buffer = _source("buffer")
"""Running statistics of the forward pass; what torch calls a buffer of a module."""


def _cast_gradient(b: Builder, node: Node, grad: int) -> int:
    return grad


cast = Op(
    "cast",
    shape=lambda inputs, attrs: inputs[0],
    forward=lambda inputs, attrs: inputs[0],
    gradients=(_cast_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example((rng.standard_normal((3, 4)).astype(np.float32),)),
    converts=True,
    in_place=(0,),
)
"""Round to the node's format; the emulator does the rounding, as for every other node."""


def _pinned_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(pinned_cast, grad) if BACK in node.attributes else grad


IN_PLACE = "in_place"
"""The attribute of an op whose result is stored where its first input was, in its format."""

NUMBER, BACK = "number", "back"
"""Attributes of `pinned_cast`: of a cast to float32, and of one back from it."""

pinned_cast = Op(
    "pinned_cast",
    shape=lambda inputs, attrs: inputs[0],
    forward=lambda inputs, attrs: inputs[0],
    gradients=(_pinned_gradient,),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (rng.standard_normal((3, 4)).astype(np.float32),), {"format": "float32"}
    ),
    keeps_format=True,
    converts=True,
    in_place=(0,),
    pinned=(0,),
)
"""A cast of the user's own to the attribute `format`: no policy moves it.

One with the attribute BACK is to the format that was left at the one with that NUMBER.
"""


def passed(b: Builder, node: Node, grad: int) -> int:
    """Return the gradient itself, in the format of what the op is stored in, if in place."""
    if IN_PLACE not in node.attributes:
        return grad
    return b.emit(pinned_cast, grad, source=pinned_cast.name)
