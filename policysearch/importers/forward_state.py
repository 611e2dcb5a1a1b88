"""What a forward pass leaves in its module for the next one.

torch.export reads one pass, the first. What later ones read besides is refused, unless it is a
buffer: that a step moves.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

from policysearch.importers.known_values import KnownValues
from policysearch.importers.stand_ins import hooks_of, module_copy, tensors_in
from policysearch.values import InputError

Key = tuple[str, str]
"""The path of a part of the module, and the name of what it holds."""


@dataclass(frozen=True)
class PassState:
    """What is other after a pass: numbers, words and results that are held, and hooks by path."""

    values: dict[Key, Any] = field(default_factory=dict)
    hooks: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What the values are called."""
        return [".".join(filter(None, key)) for key in self.values]

    def is_read_in(self, program: Any) -> bool:
        """Return whether the pass reads a tensor that it replaces: torch takes it for constant."""
        constants = program.graph_signature.inputs_to_lifted_tensor_constants
        inputs = program.graph.find_nodes(op="placeholder")
        return any(constants.get(node.name) in self.names for node in inputs if node.users)

    def copy_of(self, module: Any) -> Any:
        """Return a copy of the module as it is after the pass, results of zeros in it."""
        later = module_copy(module)
        for path, hooks in self.hooks.items():
            for name, there in hooks.items():
                getattr(later.get_submodule(path), name).update(there)
        for (path, name), value in self.values.items():
            setattr(later.get_submodule(path), name, _of_zeros(value))
        return later


@contextlib.contextmanager
def left_known(module: Any) -> Iterator[PassState]:
    """While it is entered, what a pass that is exported leaves is noted."""
    left, before, values = PassState(), set(_numbers(module).items()), KnownValues(module)
    held = {id(x) for _, value in _holders(module) for x in tensors_in([value])}
    moving = dict(_buffers(module))  # a step moves them; one that is there later alone is state

    def compare(part: Any, *_: Any) -> None:
        left.values.update({k: v for k, v in _numbers(part).items() if (k, v) not in before})
        left.hooks.update({path: hooks_of(inner) for path, inner in part.named_modules()})
        begun = ((key, x) for key, x in _buffers(part) if key not in moving)
        for key, value in (*_holders(part), *begun):
            if any(id(x) not in held and values.is_computed(x) for x in tensors_in([value])):
                left.values[key] = value

    handle = module.register_forward_hook(compare)
    try:
        yield left
    finally:
        handle.remove()


@contextlib.contextmanager
def assignments_written(module: Any) -> Iterator[None]:
    """While it is entered, a buffer that forward assigns is written into.

    torch.export does so with those of the module itself alone, and forgets those of its parts. One
    that gets another shape raises InputError.
    """
    first: dict[tuple[Any, str], Any] = {}

    def begin(part: Any, *_: Any) -> None:
        parts = part.modules()
        first.update({(inner, name): x for inner in parts for name, x in inner._buffers.items()})

    def end(part: Any, *_: Any) -> None:
        while first:  # copies of the module may have this hook too
            (inner, name), before = first.popitem()
            now = inner._buffers.get(name)
            if before is None or now is None or now is before:
                continue
            if now.shape != before.shape:
                shapes = f"{list(now.shape)} for {list(before.shape)}"
                raise InputError(
                    f"buffer {name}: forward gives it {shapes}; expected one shape: run forward "
                    "once before, where the module is made"
                )
            if inner is part:
                continue
            with torch.no_grad():
                before.copy_(now)
            inner._buffers[name] = before

    handles = module.register_forward_pre_hook(begin), module.register_forward_hook(end)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def draw_states() -> tuple[Any, ...]:
    """Return how far Python's and numpy's own generators are, which forward may draw from."""
    of_numpy: Any = np.random.get_state()
    return random.getstate(), of_numpy[1].tobytes(), of_numpy[2:]


@contextlib.contextmanager
def draws_at(share: float) -> Iterator[None]:
    """While it is entered, these generators give the number at this share of their range."""

    def between(low: float = 0.0, high: float = 1.0, *_: Any) -> float:
        return low + share * (high - low)

    def whole(low: int, high: int | None = None, *_: Any) -> int:
        low, high = (0, low - 1) if high is None else (low, high)
        return low + round(share * (high - low))

    with contextlib.ExitStack() as stack:
        for place, names in ((random, ("random", "uniform")), (np.random, ("random", "uniform"))):
            for name in names:
                stack.enter_context(mock.patch.object(place, name, between))
        stack.enter_context(mock.patch.object(np.random, "rand", lambda *_: share))
        for place in (random, np.random):
            stack.enter_context(mock.patch.object(place, "randint", whole))
        yield


def _numbers(module: Any) -> dict[Key, Any]:
    """Return the plain numbers and words that a module and its parts hold, by path and name."""
    return dict(_attributes(module, lambda x: isinstance(x, bool | int | float | str)))


def _holders(module: Any) -> Iterator[tuple[Key, Any]]:
    """Return the attributes of a module and its parts that may have tensors in them."""
    return _attributes(module, lambda x: isinstance(x, torch.Tensor | list | tuple | dict))


def _buffers(module: Any) -> Iterator[tuple[Key, Any]]:
    for path, part in module.named_modules(remove_duplicate=False):
        yield from (((path, name), x) for name, x in part._buffers.items() if x is not None)


def _attributes(module: Any, fits: Callable[[Any], bool]) -> Iterator[tuple[Key, Any]]:
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            own = name != "training" and not (name.startswith("_") and isinstance(value, dict))
            if own and fits(value):
                yield (path, name), value


def _of_zeros(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros(tuple(value.shape), dtype=value.dtype)
    if isinstance(value, dict):
        return {key: _of_zeros(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        parts = [_of_zeros(x) for x in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value
