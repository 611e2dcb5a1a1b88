"""Which of a training step's tensors are the outputs: those that its loss compares with the labels.

A step returns its loss alone. What its modules return on the way is tried, the last first: the
gradient of a loss of classes pulls each row up at its own label and at no other, that of a loss of
numbers towards the label. So accuracy and metric are of what the loss trains, whatever its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

FEWEST_NUMBERS = 4
"""Labels that are numbers are met by chance where they are fewer: each has a side of two."""


@dataclass(frozen=True)
class Place:
    """Where outputs stand: what the module called `module` returns, "" the root, or its `key`.

    Those of a loss that compares each place of a sequence with the next one's label (`ahead`) are
    all but the last.
    """

    module: str
    key: Any = None
    ahead: bool = False

    @property
    def words(self) -> str:
        """Where that is, in words."""
        part = "" if self.key is None else f", {self.key}"
        return f"{self.module or 'the module'}{part}{', of the next label' if self.ahead else ''}"

    def of(self, returned: Any) -> Any:
        """Return the outputs in what the module returned."""
        outputs = returned if self.key is None else returned[self.key]
        return outputs[:, :-1] if self.ahead else outputs


Returned = list[tuple[str, Any]]
"""What modules returned, by name, in that order."""


@contextmanager
def watched(net: Any, names: Sequence[str]) -> Iterator[Returned]:
    """Give a list that fills up with what the modules of these `names` return inside the block."""
    returned: Returned = []

    def kept(name: str, module: Any, inputs: Any, value: Any) -> None:
        returned.append((name, value))

    modules = [(name, net.get_submodule(name)) for name in names]
    hooks = [module.register_forward_hook(partial(kept, name)) for name, module in modules]
    try:
        yield returned
    finally:
        for hook in hooks:
            hook.remove()


def outputs_place(net: Any, step: Callable[[], Any], labels: Any) -> Place | None:
    """Return where the outputs stand in a `step` of `net` on a batch of these labels.

    None where the step fails, returns more than its loss, or compares nothing with the labels.
    """
    try:
        with watched(net, [name for name, _ in net.named_modules()]) as returned:
            loss = step()
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            return None
        # the root itself is called by the step, and returns the loss around it
        inside = [row for row in returned if row[1] is not loss]
        tried = list(_candidates(inside))
        tensors = [tensor for _, tensor in tried]
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True) if tensors else ()
    except Exception:  # of the user's own code: said where it is traced
        return None
    for i in reversed(range(len(tried))):
        (place, outputs), gradient = tried[i], gradients[i]
        if gradient is None:
            continue
        if _is_compared(outputs, gradient, labels):
            return place
        if labels.ndim > 1 and _is_compared(outputs[:, :-1], gradient[:, :-1], labels[:, 1:]):
            return Place(place.module, place.key, ahead=True)
    return None


def _candidates(returned: Returned) -> Iterator[tuple[Place, Any]]:
    """Yield the tensors with rows of examples that modules returned, of those called once."""
    names = [name for name, _ in returned]
    for name, value in returned:
        parts: Mapping[Any, Any] = {None: value}
        if isinstance(value, Mapping):
            parts = value
        elif isinstance(value, list | tuple):
            parts = dict(enumerate(value))
        once = names.count(name) == 1
        for key, part in parts.items():
            if once and isinstance(part, torch.Tensor) and part.requires_grad and part.ndim:
                yield Place(name, key), part


def _is_compared(outputs: Any, gradient: Any, labels: Any) -> bool:
    """Return whether a gradient of these outputs is that of a loss beside these labels."""
    if labels.is_floating_point():
        return _numbers_compared(outputs, gradient, labels)
    return any(_classes_compared(gradient.movedim(axis, -1), labels) for axis in (-1, 1))


def _classes_compared(rows: Any, labels: Any) -> bool:
    """Return whether each row that has a gradient is pulled up at its label, and nowhere more."""
    if rows.shape[:-1] != labels.shape or rows.shape[-1] < 2:
        return False
    live = rows.ne(0.0).any(-1)
    least, place = rows.min(-1)
    return bool(live.any()) and bool(((place == labels) & (least < 0.0))[live].all())


def _numbers_compared(outputs: Any, gradient: Any, labels: Any) -> bool:
    """Return whether each output that has a gradient is pulled towards its label."""
    if outputs.shape[:1] != labels.shape[:1] or outputs.numel() != labels.numel():
        return False
    pull, off = gradient.reshape(labels.shape), outputs.reshape(labels.shape) - labels
    live = pull.ne(0.0)
    enough = int(live.sum()) >= FEWEST_NUMBERS
    return enough and bool((pull.sign() == off.sign())[live].all())
