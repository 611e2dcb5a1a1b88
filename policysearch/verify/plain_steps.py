"""What scripts that train in other interpreters share: it imports nothing but numpy.

A copy of this file lies beside a copy of the script, and nothing else of the package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Plan = Mapping[str, Any]
Steps = Sequence[tuple[float, float, bool]]
"""Of each step: its loss, its loss scale, and whether it was skipped."""

PLAN, ARRAYS, FILE, RESULT, VALUES = (
    "plan.json",
    "arrays.npz",
    "exported.py",
    "result.json",
    "values.npz",
)
NEAR = 2
"""Steps before a growth at which the counter of good steps is set: so an interval is seen."""
FORCED = (True, False, True, False), (True, True, True, False)
"""Which gradients are finite in the forced steps of a loss scale: before the counter is set, and
then."""


def given_in(folder: Path) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """Return the plan, the arrays and what the exported file defines."""
    space: dict[str, Any] = {"__name__": "exported"}
    exec(compile((folder / FILE).read_text(encoding="utf-8"), FILE, "exec"), space)
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    return plan, dict(np.load(folder / ARRAYS)), space


def write_result(
    folder: Path, told: Mapping[str, Any], values: Sequence[Mapping[str, Any]]
) -> None:
    """Write what is told, and the values before each step and after the last."""
    (folder / RESULT).write_text(json.dumps(told), encoding="utf-8")
    named: dict[str, Any] = {
        f"{n} {name}": np.asarray(x, np.float32)
        for n, row in enumerate(values)
        for name, x in row.items()
    }
    np.savez(folder / VALUES, **named)


def parts_of(chain: Sequence[Plan]) -> Iterator[Plan]:
    """Yield the layers of a chain, those inside others first."""
    for part in chain:
        yield from parts_of([*part.get("inner", ()), *part.get("shortcut", ())])
        yield part


def weights_in(arrays: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the names of the initial values: whole, of their layer, and of what they are in it."""
    for name in arrays:
        layer, dot, word = name.rpartition(".")
        if dot:
            yield name, layer, word


@dataclass(frozen=True)
class Places:
    """How modules of a framework lie in one another: what is at a word in one, and a new one there.

    `at` returns None where nothing is; `group` makes what names with dots lie in.
    """

    at: Callable[[Any, str], Any]
    put: Callable[[Any, str, Any], object]
    group: Callable[[], Any]

    def of(self, net: Any, name: str) -> Any:
        """Return the module of a name with dots."""
        for word in name.split("."):
            net = self.at(net, word)
        return net

    def fill(self, net: Any, chain: Sequence[Plan], made: Callable[[Plan], Any]) -> None:
        """Put what is made of each layer of a chain at the place of its name."""
        # one in whose name another's begins is before that
        for part in sorted(parts_of(chain), key=lambda part: part["name"].count(".")):
            *path, last = part["name"].split(".")
            place = net
            for word in path:
                if self.at(place, word) is None:
                    self.put(place, word, self.group())
                place = self.at(place, word)
            self.put(place, last, made(part))


def moved(plan: Plan, value: Any, states: Any, grad: Any, rate: Any, step: Any) -> tuple[Any, Any]:
    """Return two states and a value after an update, as torch's SGD, Adam and AdamW have them."""
    decay = plan["weight_decay"] if value.ndim > 1 or plan["decays"] == "all" else 0.0
    first, second = states
    if plan["optimizer"] == "adamw":
        value = value * (1.0 - rate * decay)
    else:
        grad = grad + decay * value
    if plan["optimizer"] in ("sgd", "momentum"):
        momentum = plan["momentum"] if plan["optimizer"] == "momentum" else 0.0
        first = momentum * first + grad
        ahead = grad + momentum * first if plan["nesterov"] else first
        return (first, second), value - rate * ahead
    one, two = plan["beta1"], plan["beta2"]
    first = one * first + (1.0 - one) * grad
    second = two * second + (1.0 - two) * grad * grad
    root = second**0.5 / (1.0 - two**step) ** 0.5 + plan["epsilon"]
    return (first, second), value - rate / (1.0 - one**step) * first / root


def clipped(plan: Plan, grads: Sequence[Any]) -> Sequence[Any]:
    """Return the gradients clipped as the plan says."""
    if plan["clip_norm"] is not None:
        norm = sum((g * g).sum() for g in grads) ** 0.5
        share = plan["clip_norm"] / (norm + 1e-6)
        grads = [g * share.clip(None, 1.0) for g in grads]
    if plan["clip_value"] is not None:
        grads = [g.clip(-plan["clip_value"], plan["clip_value"]) for g in grads]
    return grads


def forced(
    scale_of: Callable[[], float],
    step: Callable[[bool], None],
    set_counter: Callable[[int], object],
    interval: int,
) -> list[float]:
    """Return the scales after forced steps: the interval, the growth and the backoff are seen."""
    scales = [float(interval)]
    for finite in FORCED[0]:
        step(finite)
        scales.append(scale_of())
    set_counter(max(0, interval - NEAR))
    for finite in FORCED[1]:
        step(finite)
        scales.append(scale_of())
    return scales
