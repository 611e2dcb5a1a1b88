"""A user's module whose forward pass is a training step: arrays of a batch to the loss.

It stays the root, so that its layers and parameters keep their names.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from policysearch.importers.stand_ins import module_copy
from policysearch.importers.torch_export import EVALUATES_OTHERWISE
from policysearch.train.losses import LOSSES
from policysearch.train.scripts.outputs import Place, outputs_place, watched
from policysearch.values import InputError, one_of

Step = Callable[[Any, Any], Any]
"""Of the module and a batch, the loss."""

LABELS = ("labels", "label", "targets", "target", "y")
"""What the labels of a batch are called, if it has names."""

PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Leaf:
    """Where a value stands in a batch, and what it is called as an input."""

    path: tuple[Any, ...]
    name: str
    truths: bool = False


@dataclass(frozen=True)
class Layout:
    """The tensors of a batch in order, and the batch without them.

    Lists of `words`, one of every example, are left out: a step that reads one fails.
    """

    leaves: tuple[Leaf, ...]
    shell: Any
    words: tuple[str, ...] = ()

    def rebuilt(self, tensors: Sequence[Any]) -> Any:
        """Return the batch with these tensors in it."""
        held = {
            leaf.path: tensor.bool() if leaf.truths else tensor
            for leaf, tensor in zip(self.leaves, tensors, strict=True)
        }
        return _value_of(self.shell, held, ())

    def labels(self, wanted: str = "") -> int | None:
        """Return the place of the labels: those called so, or the last of several without names.

        InputError where none is called as `wanted`.
        """
        names = [leaf.name for leaf in self.leaves]
        if wanted and wanted not in names:
            raise InputError(f"labels: {wanted!r}; expected one of {', '.join(names)}")
        for name in (wanted,) if wanted else LABELS:
            if name in names:
                return names.index(name)
        unnamed = isinstance(self.shell, list | tuple) and len(names) > 1
        return len(names) - 1 if unnamed else None


def layout_of(batch: Any) -> Layout:
    """Return how a batch is made; InputError for what is neither tensor, number nor word."""
    leaves, words = list[Leaf](), list[str]()
    shell = _shell_of(batch, (), leaves, words)
    if not leaves:
        raise InputError(f"batch: {type(batch).__name__} without tensors; expected some")
    return Layout(tuple(leaves), shell, tuple(words))


def tensors_of(batch: Any, layout: Layout) -> list[Any]:
    """Return the tensors of another batch in the order of the first; InputError where it differs.

    That is, where it holds others, or other numbers and words beside them.
    """
    own = layout_of(batch)
    if own != layout:
        names, others = ([leaf.name for leaf in x.leaves] for x in (layout, own))
        given = ", ".join(others) if names != others else "other numbers or words"
        raise InputError(f"{given}; expected {', '.join(names)}, as in the first")
    return [_at(batch, leaf.path) for leaf in layout.leaves]


def _shell_of(value: Any, path: tuple[Any, ...], leaves: list[Leaf], words: list[str]) -> Any:
    if isinstance(value, torch.Tensor):
        name = "_".join(str(key) for key in path) or "batch"
        name = name if name.isidentifier() else f"input_{name}"
        name = name if name.isidentifier() else f"input_{len(leaves)}"
        leaves.append(Leaf(path, name, value.dtype == torch.bool))
        return None
    place = ".".join(map(str, path))
    if _is_words(value):
        words.append(place)
        return None
    if isinstance(value, Mapping):
        rows = {key: _shell_of(held, (*path, key), leaves, words) for key, held in value.items()}
        return {key: row for key, row in rows.items() if not _is_words(value[key])}
    if isinstance(value, list | tuple):
        parts = [_shell_of(held, (*path, i), leaves, words) for i, held in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if not isinstance(value, PLAIN):
        raise InputError(f"batch {place}: {type(value).__name__}; expected tensors and numbers")
    return value


def _is_words(value: Any) -> bool:
    several = isinstance(value, list | tuple) and bool(value)
    return several and all(isinstance(word, str) for word in value)


def _value_of(shell: Any, held: Mapping[Any, Any], path: tuple[Any, ...]) -> Any:
    if path in held:
        return held[path]
    if isinstance(shell, dict):
        return {key: _value_of(value, held, (*path, key)) for key, value in shell.items()}
    if isinstance(shell, list | tuple):
        parts = [_value_of(value, held, (*path, i)) for i, value in enumerate(shell)]
        return parts if isinstance(shell, list) else tuple(parts)
    return shell


def _at(batch: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        batch = batch[key]
    return batch


@dataclass(frozen=True)
class Stepping:
    """Makes the module whose forward pass is `step` on a batch of this `layout`.

    `module` is one, or a function that makes one.
    """

    module: Any
    step: Step
    layout: Layout
    place: Place | None = None

    def __call__(self) -> Any:
        made = self.module if isinstance(self.module, torch.nn.Module) else self.module()
        if not isinstance(made, torch.nn.Module):
            raise InputError(f"module: {type(made).__name__}; expected an nn.Module or its maker")
        return stepped(made, self.step, self.layout, self.place)

    def placed(self, batch: Sequence[Any], labels: int) -> Stepping:
        """Return the same with the place of the outputs, as tensors of a batch say it.

        `labels` is the place of the labels among them.
        """
        net = self()
        return replace(self, place=outputs_place(net, lambda: net(*batch), batch[labels]))


def stepped(module: Any, step: Step, layout: Layout, place: Place | None = None) -> Any:
    """Return a shallow copy of `module` whose forward pass takes tensors and returns the loss.

    Beside it are the outputs, where they have a place. Called by the step itself it is what it was.
    """
    own = type(module)

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        if self._in_step:
            return own.forward(self, *arguments, **options)
        self._in_step.append(True)
        names = [] if place is None else [place.module]
        try:
            with watched(self, names) as returned:
                loss = step(self, layout.rebuilt(arguments))
        finally:
            self._in_step.pop()
        return loss if place is None else (loss, place.of(returned[0][1]))

    names = ["self", *(leaf.name for leaf in layout.leaves)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    rows = [inspect.Parameter(name, kind) for name in names]
    forward.__signature__ = inspect.Signature(rows)  # type: ignore[attr-defined]
    silent = {name: _drop_log for name in ("log", "log_dict") if hasattr(own, name)}
    net = copy.copy(module)
    net.__dict__ = dict(module.__dict__)
    net.__class__ = type(own.__name__, (own,), {"forward": forward, **silent})
    net.__dict__["_in_step"] = []
    net.__dict__[EVALUATES_OTHERWISE] = getattr(step, EVALUATES_OTHERWISE, False)
    return net


def _drop_log(self: Any, *_: Any, **__: Any) -> None:
    """Take what a step would log, and let it be."""


def step_of(loss: str | Callable[..., Any], module: Any, first: Callable[[], Any]) -> Step | None:
    """Return the training step of a loss; None for one that has a name.

    `first` draws a batch: a function says by running whether it takes the module and a batch, or
    outputs and labels. One that takes neither fails where it is traced.
    """
    if isinstance(loss, str):
        one_of("loss", loss, LOSSES)
        return None
    if isinstance(loss, torch.nn.Module):
        return Criterion(loss)
    if not callable(loss):
        valid = "a function of module and batch or of outputs and labels, an nn.Module or a name"
        raise InputError(f"loss: {type(loss).__name__}; expected {valid}")
    batch = first()
    with torch.random.fork_rng(devices=[]):
        net = module_copy(module) if isinstance(module, torch.nn.Module) else module()
        try:
            loss(net, batch)
        except Exception:  # of the user's own code
            with contextlib.suppress(Exception):
                found = loss(*Criterion(loss).compared(net, batch))
                if isinstance(found, torch.Tensor) and found.ndim == 0:
                    return Criterion(loss)
    return loss


class Criterion:
    """A step of a loss of the outputs and the last of the batch, a module or a function.

    It returns the outputs beside the loss, for accuracy and metric.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def __call__(self, module: Any, batch: Any) -> Any:
        outputs, labels = self.compared(module, batch)
        loss = self._loss(outputs, labels)
        return (loss, outputs) if isinstance(outputs, torch.Tensor) else loss

    def compared(self, module: Any, batch: Any) -> tuple[Any, Any]:
        """Return the outputs and labels of a batch; InputError where it is no tuple."""
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            given = type(batch).__name__
            raise InputError(
                f"batch: {given} with a loss of outputs and labels; expected (inputs..., labels)"
            )
        return module(*batch[:-1]), batch[-1]
