"""Trains with an exported MindSpore file: `python -m ... FOLDER`.

It runs in the interpreter that has MindSpore, beside a copy of `plain_steps.py` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn, ops

from policysearch.verify.plain_steps import (
    Places,
    Plan,
    clipped,
    forced,
    given_in,
    moved,
    parts_of,
    write_result,
)


def main(folder: Path) -> None:
    """Train what the folder says and write the result beside it."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    write_result(folder, *trained(*given_in(folder)))


class Sum(nn.Cell):
    """The sum of two branches."""

    def construct(self, x: Any, y: Any) -> Any:
        return x + y


class Group(nn.Cell):
    """What names with dots lie in."""


def cell_of(part: Plan) -> Any:
    """Return the cell that a row of the plan describes."""
    match part["type"]:
        case "Linear":
            return nn.Dense(part["n_in"], part["n_out"], has_bias=part["bias"])
        case "Conv2d":
            return nn.Conv2d(
                part["c_in"],
                part["c_out"],
                part["window"],
                part["stride"],
                pad_mode="pad",
                padding=part["padding"],
                has_bias=part["bias"],
            )
        case "Pool":
            kind = {"max": nn.MaxPool2d, "average": nn.AvgPool2d}[part["function"]]
            return kind(part["window"], part["window"])
        case "Flatten":
            return nn.Flatten()
        case "Activation":
            kinds = {
                "relu": nn.ReLU,
                "tanh": nn.Tanh,
                "sigmoid": nn.Sigmoid,
                "gelu": lambda: nn.GELU(approximate=False),
                "gelu_tanh": nn.GELU,
            }
            return kinds[part["function"]]()
    return Sum()


PLACES = Places(
    lambda place, word: place._cells.get(word),
    lambda place, word, cell: place.insert_child_to_cell(word, cell),
    Group,
)
"""How cells lie in one another."""


class Net(nn.Cell):
    """The chain of the plan: a cell at the place of its name for every layer."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        PLACES.fill(self, plan["chain"], cell_of)

    def through(self, chain: Sequence[Plan], x: Any) -> Any:
        """Return what a chain gives."""
        for part in chain:
            cell = PLACES.of(self, part["name"])
            if "inner" in part:
                x = cell(self.through(part["inner"], x), self.through(part["shortcut"], x))
            else:
                x = cell(x)
        return x

    def construct(self, x: Any) -> Any:
        return self.through(self.plan["chain"], x)


def seen(net: Net, step: Callable[[], object]) -> list[list[str]]:
    """Return the dtypes at the cells with a weight, in a step: of what each gives, in order.

    Then, from the last to the first, that of the gradient which its products backward read: two,
    or one where nothing before it wants a gradient.
    """
    forward: list[tuple[Any, str]] = []
    backward: dict[int, list[str]] = {}

    def note(cell: Any, read: Any, given: Any) -> None:
        forward.append((cell, str(given.dtype).lower()))

    def note_back(cell: Any, made: Any, read: Any) -> None:
        backward[id(cell)] = [str(read[0].dtype).lower()] * (1 if made[0] is None else 2)

    hooks = []
    for part in parts_of(net.plan["chain"]):
        if part["type"] in ("Linear", "Conv2d"):
            cell = PLACES.of(net, part["name"])
            hooks += [cell.register_forward_hook(note), cell.register_backward_hook(note_back)]
    step()
    for hook in hooks:
        hook.remove()
    found = [dtype for _, dtype in forward]
    for cell, _ in reversed(forward):
        found += [dtype.removeprefix("mindspore.") for dtype in backward[id(cell)]]
    return [[dtype, dtype] for dtype in found]


def tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Return a batch as MindSpore takes it."""
    return mindspore.Tensor(x), mindspore.Tensor(y.astype(np.int32))


def trained(plan: Plan, arrays: Mapping[str, Any], space: Any) -> tuple[Any, list[Any]]:
    """Return what a training in MindSpore tells, and the values around every step."""
    net = Net(plan)
    named = _loaded_parameters(net, arrays)
    net = space["apply_policy"](net) or net
    scaler, weights = space["loss_scaler"](), [*named.values()]

    def scaled(x: Any, y: Any) -> Any:
        loss = ops.cross_entropy(ops.cast(net(x), mindspore.float32), y)
        return scaler.scale(loss) if scaler else loss, loss

    gradients = mindspore.value_and_grad(scaled, None, weights, has_aux=True)
    found = seen(net, lambda: gradients(*tensors(arrays["x"][0], arrays["y"][0])))
    steps: list[Any] = []
    values, count = [_held(named)], 0
    kept = [(np.zeros(p.shape, np.float32),) * 2 for p in weights]
    for x, y, rate in zip(arrays["x"], arrays["y"], plan["rates"], strict=True):
        now = _scale(scaler)
        (_, loss), given = gradients(*tensors(x, y))
        grads = [g.astype(mindspore.float32).asnumpy() * np.float32(1.0 / now) for g in given]
        finite = all(bool(np.isfinite(g).all()) for g in grads)
        skipped = not finite and hasattr(scaler, "scale_window")
        if not skipped:
            count += 1
            rows = zip(weights, kept, clipped(plan, grads), strict=True)
            made = [moved(plan, _array(p), k, g, np.float32(rate), count) for p, k, g in rows]
            kept = [states for states, _ in made]
            for parameter, (_, value) in zip(weights, made, strict=True):
                parameter.set_data(mindspore.Tensor(value, parameter.dtype))
        if scaler:
            scaler.adjust(mindspore.Tensor(finite))
        steps.append([float(loss), now, skipped])
        values.append(_held(named))
    told = {"version": f"mindspore {mindspore.__version__}", "products": found}
    counts = {
        "state_keys": len(named),
        "same_keys": [*named] == [name for name, _ in net.parameters_and_names()],
    }
    return {"steps": steps, "events": events(space), **counts, **told}, values


def _loaded_parameters(net: Net, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Give the parameters their initial values, and return them by name."""
    named = dict(net.parameters_and_names())
    for name, parameter in named.items():
        parameter.set_data(mindspore.Tensor(arrays[name]))
    return named


def _array(parameter: Any) -> Any:
    return parameter.astype(mindspore.float32).asnumpy().copy()


def _held(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _array(parameter) for name, parameter in named.items()}


def _scale(scaler: Any) -> float:
    if scaler is None:
        return 1.0
    value = scaler.scale_value
    return float(value.asnumpy() if hasattr(value, "asnumpy") else value)


def events(space: Any) -> list[float]:
    """Return the scales of forced steps, none where the scale does not move."""
    scaler = space["loss_scaler"]()
    if not hasattr(scaler, "scale_window"):
        return []

    def set_counter(count: int) -> None:
        scaler.counter.set_data(mindspore.Tensor(count, mindspore.int32))

    def step(finite: bool) -> None:
        scaler.adjust(mindspore.Tensor(finite))

    return forced(lambda: _scale(scaler), step, set_counter, int(scaler.scale_window))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
