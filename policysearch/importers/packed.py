"""Packed sequences as torch.export cannot have them: padded ones and their lengths.

What torch packs has a size that depends on values. While an export runs a PackedSequence holds no
tensor but Steps, so that whatever reads it other than a recurrent layer, or what pads it again,
fails there and is refused. As if the longest sequence of every batch filled all steps there are.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

MARK = "_pack_padded_sequence"
"""The op, in this package's name space, that says of padded steps how long they are."""


@dataclass(frozen=True)
class Steps:
    """What a packed sequence holds: values [time, batch, width], as layers ask a packed one."""

    values: Any
    lengths: Any

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def device(self) -> Any:
        return self.values.device

    @property
    def is_cuda(self) -> bool:
        return False

    def dim(self) -> int:
        return 2

    def size(self, _: int) -> int:
        return int(self.values.shape[-1])


@dataclass(frozen=True)
class Sizes:
    """In place of `batch_sizes`: how many steps there are, of how many sequences the first."""

    steps: int
    batch: int
    device: Any

    def __getitem__(self, _: int) -> int:
        return self.batch

    def size(self, _: int) -> int:
        return self.steps


@functools.cache
def _mark() -> Any:
    """Return the op that gives values back, marked by lengths; registered once per process."""

    def mark(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return values.clone()

    op: Any = torch.library.custom_op(f"policysearch::{MARK}", mark, mutates_args=())
    op.register_fake(lambda values, lengths: torch.empty_like(values))
    return getattr(torch.ops.policysearch, MARK)


def _pack(x: Any, lengths: Any, batch_first: bool) -> tuple[Steps, Sizes]:
    values = x.transpose(0, 1) if batch_first else x
    steps, batch, *_ = values.shape
    return Steps(values, lengths), Sizes(steps, batch, values.device)


def _padded_steps(
    packed: Steps, sizes: Sizes, batch_first: bool, padding: float, steps: int
) -> tuple[Any, Any]:
    there = torch.arange(sizes.steps).unsqueeze(1) < packed.lengths
    values = packed.values.masked_fill(~there.unsqueeze(-1), padding)
    if steps > sizes.steps:
        values = torch.nn.functional.pad(
            values, (0, 0, 0, 0, 0, steps - sizes.steps), value=padding
        )
    return (values.transpose(0, 1) if batch_first else values), packed.lengths


def _of_packed(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recurrent layer of torch that takes Steps as well."""

    def call(x: Any, *arguments: Any) -> Any:
        if not isinstance(x, Steps):
            return layer(x, *arguments)
        _, *others = arguments
        outputs, *last = layer(_mark()(x.values, x.lengths), *others, False)
        return (Steps(outputs, x.lengths), *last)

    return call


@contextlib.contextmanager
def packed_known() -> Iterator[None]:
    """While it is entered, sequences are packed and padded again as what is said above."""
    names = ("lstm", "gru", "rnn_tanh", "rnn_relu")
    functions = {"_pack_padded_sequence": _pack, "_pad_packed_sequence": _padded_steps}
    functions |= {name: _of_packed(getattr(torch._VF, name)) for name in names}
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(torch._VF, name, function, create=True))
        yield
