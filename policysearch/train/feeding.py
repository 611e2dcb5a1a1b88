"""What a training is fed: initial parameters, the order of batches, their arrays, what is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset, batches
from policysearch.data.spool import SpooledDataset
from policysearch.emulator.compile import Step
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Node, size
from policysearch.nn.model import DRAWN, DROPPED, Model, ParameterSpec
from policysearch.ops.source import (
    AVERAGE,
    INVERSE_SCALE,
    LEARNING_RATE,
    LOSS_SCALE,
    MOMENTUM,
    MOMENTUM_SHARE,
    RATE_FACTOR,
    STEP_NUMBER,
    TARGETS,
)
from policysearch.rounding.rounder import quantise
from policysearch.rounding.stochastic import draw_table
from policysearch.train.loss_scale import inverse
from policysearch.train.tasks import Task
from policysearch.values import InputError

Array = NDArray[Any]

SMALLEST = np.finfo(np.float32).tiny

DRAWS: Mapping[str, Callable[..., Array]] = MappingProxyType(
    {
        "normal": lambda rng, shape, mean, deviation: (
            mean + deviation * rng.standard_normal(shape, np.float32)
        ),
        "uniform": lambda rng, shape, low, high: low + (high - low) * rng.random(shape, np.float32),
        "bernoulli": lambda rng, shape, share: rng.random(shape) < share,
        # above 0, as in torch: what reads it takes the logarithm
        "exponential": lambda rng, shape, rate: (
            np.maximum(rng.standard_exponential(shape, np.float32), SMALLEST) / rate
        ),
        "integers": lambda rng, shape, low, high: rng.integers(low, high, shape),
        "permutation": lambda rng, shape: rng.permutation(*shape),
    }
)
"""What a net may draw, of a generator, a shape and the numbers that the distribution takes."""

KEPT = ("parameter", "state", "buffer")
"""Sources that one step leaves to the next."""


def feed_constants(step: Step, model: Model) -> None:
    """Write the model's constants to their sources, once per compiled step."""
    for name, array in model.constants.items():
        if name in step.arrays:
            step.arrays[name][...] = array


def feed_state(arrays: Mapping[str, Array], model: Model) -> None:
    """Write the optimizer's state that the model starts with, if it does, to those `arrays`.

    InputError where the optimizer has no such state.
    """
    for name, array in model.optimizer_state.items():
        if name not in arrays or arrays[name].shape != array.shape:
            raise InputError(f"optimizer state {name}: not the optimizer's; expected its own")
        arrays[name][...] = array


def begin_averages(arrays: Mapping[str, Array], model: Model) -> None:
    """Let the moving averages there are begin at the parameters, as torch's copy of a module."""
    for spec in model.parameters():
        if spec.name + AVERAGE in arrays:
            arrays[spec.name + AVERAGE][...] = arrays[spec.name]


def averaged(step: Step, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return `arrays` with averages for parameters, rounded to where the step keeps parameters."""
    taken = dict(arrays)
    for node in step.graph.nodes:
        if node.op.name == "parameter" and node.name + AVERAGE in arrays:
            taken[node.name] = arrays[node.name].copy(order="K")  # laid out as steps share it
            taken[node.name][...] = as_stored(node, arrays[node.name + AVERAGE])
    return taken


def feed_inputs(step: Step, model: Model, inputs: Sequence[Array], labels: Array) -> None:
    """Write a batch to the sources of the model's inputs and to TARGETS."""
    for name, array in arrays_by_input(model, inputs, labels):
        _write(f"model {model.name}, input {name}", step.arrays[name], array)
    if TARGETS in step.arrays:
        _write_targets(f"model {model.name}, labels", step.arrays[TARGETS], labels)


def arrays_by_input(
    model: Model, inputs: Sequence[Array], labels: Array
) -> Iterator[tuple[str, Array]]:
    """Yield the array of each input of the model, by its name.

    A model that returns its own loss takes the labels as the input its `labels` names.
    """
    arrays = iter(inputs)
    for item in model.inputs:
        array = labels if item.name == model.labels else next(arrays, None)
        if array is None:
            raise InputError(f"model {model.name}, input {item.name}: nothing; expected an array")
        yield item.name, array


def _write(where: str, source: FloatArray, values: Array) -> None:
    if values.shape != source.shape:
        raise InputError(f"{where}: shape {list(values.shape)}; expected {list(source.shape)}")
    source[...] = values


def _write_targets(where: str, targets: FloatArray, labels: Array) -> None:
    """Write labels as they are, or class numbers as one-hot rows where rows are wanted."""
    flat = labels.reshape(-1)
    if labels.size == targets.size:
        targets[...] = labels.reshape(targets.shape)
        return
    if targets.ndim == 1 or labels.dtype == np.float32:
        raise InputError(f"{where}: {labels.size} values; expected {targets.size}")
    if len(flat) != len(targets) or flat.min() < 0:
        raise InputError(
            f"{where}: {len(flat)}, from {flat.min()}; expected {len(targets)}, from 0 on"
        )
    targets[...] = 0.0
    targets[np.arange(len(flat)), flat] = 1.0


def feed_scalars(
    step: Step,
    loss_scale: float,
    learning_rate: float = 0.0,
    number: int = 1,
    momentum: float | None = None,
) -> None:
    """Write the loss scale and its inverse, the learning rate and the number of the step.

    And the momentum, where a schedule moves it.
    """
    scalars = {
        LOSS_SCALE: loss_scale,
        INVERSE_SCALE: inverse(loss_scale),
        LEARNING_RATE: learning_rate,
        STEP_NUMBER: number,
        **({} if momentum is None else {MOMENTUM: momentum, MOMENTUM_SHARE: 1.0 - momentum}),
    }
    for name in scalars.keys() & step.arrays.keys():
        step.arrays[name][...] = scalars[name]


def feed_rates(step: Step, rate: Callable[[float], float]) -> None:
    """Write the learning rates of the groups that have a factor: `rate` of that."""
    for node in step.graph.nodes:
        if node.op.kind == "source" and RATE_FACTOR in node.attributes:
            step.arrays[node.name][...] = rate(node.attributes[RATE_FACTOR])


def feed_masks(step: Step, seed: int, index: int) -> None:
    """Write what step `index` draws: dropout masks, 0 or 1 / (1 - p), and the values of DRAWS.

    They are drawn from (seed, step, place in the model, element), so that policies drop the same
    values and add the same noise.
    """
    places = draws = 0
    for node in step.graph.nodes:
        named = node.attributes if node.op.kind == "source" else {}
        if DROPPED in named:
            mask = dropout_mask(size(node.shape), named[DROPPED], seed, index, places)
            step.arrays[node.name][...] = mask.reshape(node.shape)
            places += 1
        elif DRAWN in named:
            kind, *numbers = named[DRAWN]
            rng = np.random.default_rng([seed, index, draws, 3])
            step.arrays[node.name][...] = DRAWS[kind](rng, node.shape, *numbers)
            draws += 1


def dropout_mask(count: int, share: float, seed: int, index: int, place: int) -> FloatArray:
    """Return the mask [count] of step `index` at a place of the model, as `feed_masks` has it."""
    # A word per element of one mixer, from a place that the seed chooses: the mask is the same in
    # every policy, process and machine, and needs no state between steps.
    key = np.random.SeedSequence([seed, index, place]).generate_state(1)[0]
    drawn = draw_table(count, int(key) & ~0xFF)
    keeps = drawn >= np.uint32(min(share * 2.0**32, 2.0**32 - 1))
    return keeps.astype(np.float32) / np.float32(1.0 - share)


def initial_parameters(model: Model, seed: int, jitter: float = 0.0) -> dict[str, FloatArray]:
    """Return the parameters every policy starts from with this seed.

    `jitter` multiplies each by 1 + jitter * a standard normal draw, to measure the noise floor.
    """
    params = model.init(np.random.default_rng([seed, 0]))
    if jitter:
        rng = np.random.default_rng([seed, 2])
        params = {
            name: (value * (1.0 + jitter * rng.standard_normal(value.shape))).astype(np.float32)
            for name, value in params.items()
        }
    return params


def batch_order(task: Task, dataset: Dataset, seed: int) -> NDArray[np.int64]:
    """Return the training examples of every policy's steps with this seed.

    They are [steps, examples], micro-batch after micro-batch.
    """
    count = task.steps * task.accumulation_steps
    if isinstance(dataset, SpooledDataset):
        order = dataset.order(task.batch_size, count, seed)
    else:
        order = batches(dataset, task.batch_size, count, np.random.default_rng([seed, 1]))
    return order.reshape(task.steps, -1)


def micro_batches(
    inputs: Sequence[Array], labels: Array, count: int
) -> Iterator[tuple[Sequence[Array], Array]]:
    """Yield the `count` equal parts of the batch of a step, in order."""
    if count == 1:
        yield inputs, labels
        return
    length = len(labels) // count
    for first in range(0, count * length, length):
        part = slice(first, first + length)
        yield [array[part] for array in inputs], labels[part]


def as_stored(node: Node, array: Array) -> FloatArray:
    """Return the array rounded to the format that its source keeps it in."""
    return quantise(array, format_named(node.format))


def check_initial(specs: Iterable[ParameterSpec], arrays: Mapping[str, FloatArray]) -> None:
    """Raise InputError for initial arrays, by name, that are missing or of another shape."""
    for spec in specs:
        if spec.name not in arrays or arrays[spec.name].shape != spec.shape:
            given = arrays[spec.name].shape if spec.name in arrays else "nothing"
            raise InputError(f"initial {spec.name}: {given}; expected shape {spec.shape}")
