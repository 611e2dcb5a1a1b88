"""An imported net beside its module: values, gradients and names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import policysearch
from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray
from policysearch.importers.stand_ins import module_copy
from policysearch.nn.model import Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.rounding.rounder import Fast
from policysearch.train.feeding import feed_constants, feed_inputs, feed_masks, feed_scalars
from policysearch.train.step import trace_forward, trace_step

Array = NDArray[Any]

BATCH = 5
LOSS = "token_cross_entropy"
ZERO = 1e-6
"""A gradient of no more than this share of the largest is 0 but for rounding."""


@dataclass(frozen=True)
class Beside:
    """What torch and the emulator make of one batch: logits in training, gradients by name."""

    logits: FloatArray
    grads: dict[str, FloatArray]


def shaken(module: Any) -> Any:
    """Return the module with parameters off the ones and zeros that hide what is not read."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter += 0.2 * torch.randn_like(parameter)
        for name, buffer in module.named_buffers():
            if "running" in name:
                buffer += 0.5 * torch.rand_like(buffer)
    return module


def imported(module: Any, inputs: Sequence[Array], **options: Any) -> Model:
    return policysearch.from_torch(module, tensors(inputs), **options)


def tensors(arrays: Sequence[Array]) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(np.array(array)) for array in arrays)


def labels_for(logits: Any, rng: np.random.Generator) -> Array:
    """Return labels for logits [..., classes]."""
    *lead, classes = logits.shape
    return rng.integers(0, classes, tuple(lead))


def first_of(result: Any) -> Any:
    """Return the first tensor that a module returns, in a tuple, a dict or alone."""
    if isinstance(result, torch.Tensor):
        return result
    return first_of(next(iter(result.values())) if isinstance(result, Mapping) else result[0])


def emulated_step(
    model: Model, inputs: Sequence[Array], labels: Array, fast: Fast | None = None
) -> Step:
    """Return a float32 step on a batch, forward and backward done; its model is as initialised."""
    batch = len(inputs[0])
    graph = trace_step(model, LOSS, Optimizer("sgd"), batch)
    step = compile_graph(graph, fast=fast)
    for name, value in model.init(np.random.default_rng(0)).items():
        if name in step.arrays:
            step.arrays[name][...] = value
    feed_scalars(step, 1.0)
    feed_constants(step, model)
    feed_inputs(step, model, inputs, labels)
    feed_masks(step, 0, 0)
    step.forward_backward()
    return step


def emulated(
    model: Model, inputs: Sequence[Array], labels: Array, fast: Fast | None = None
) -> Beside:
    step = emulated_step(model, inputs, labels, fast)
    names = [name for name, _ in step.graph.outputs if name.startswith("grad:")]
    grads = {name.removeprefix("grad:"): step.value(name).copy() for name in names}
    return Beside(step.value("logits").copy(), grads)


def evaluated(
    model: Model, inputs: Sequence[Array], arrays: Mapping[str, FloatArray] | None = None
) -> FloatArray:
    """Return the logits of evaluation, with the initial arrays unless others are given."""
    step = compile_graph(trace_forward(model, len(inputs[0])))
    for name, value in (arrays or model.init(np.random.default_rng(0))).items():
        if name in step.arrays:
            step.arrays[name][...] = value
    feed_constants(step, model)
    for item, array in zip(model.inputs, inputs, strict=True):
        step.arrays[item.name][...] = array
    step.forward_backward()
    return step.value("logits").copy()


def of_torch(module: Any, inputs: Sequence[Array], labels: Array) -> Beside:
    """Return what torch makes of the batch in training mode, in the module's own format."""
    module.zero_grad()
    logits = first_of(module.train()(*tensors(inputs)))
    flat = logits.reshape(-1, logits.shape[-1])
    loss = torch.nn.functional.cross_entropy(flat, torch.from_numpy(labels).reshape(-1))
    loss.backward()
    named = module.named_parameters()
    grads = {name: p.grad.numpy().copy() for name, p in named if p.grad is not None}
    return Beside(logits.detach().numpy().copy(), grads)


def assert_close(got: FloatArray, expected: FloatArray, tolerance: float, where: str) -> None:
    """Assert that the largest difference is at most `tolerance` times the largest value."""
    assert got.shape == expected.shape, where
    largest = np.abs(expected).max()
    assert largest > 0, where
    assert np.abs(got - expected).max() <= tolerance * largest, where


def jumps_of(
    module: Any, inputs: Sequence[Array], labels: Array, exact: Mapping[str, Array]
) -> dict[str, float]:
    """Return how far gradients move from `exact` as the parameters do by 1e-6, there and back.

    By more than that where a ReLU is at its edge: then float32 may fall on either side of it.
    """
    moved = {name: 0.0 for name in exact}
    for sign in (1e-6, -1e-6):
        near, noise = module_copy(module), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in near.parameters():
                p *= 1 + sign * torch.randn(p.shape, generator=noise, dtype=p.dtype)
        for name, grad in of_torch(near, inputs, labels).grads.items():
            moved[name] = max(moved[name], float(np.abs(grad - exact[name]).max(initial=0.0)))
    return moved


def assert_gradients_close(
    got: Mapping[str, FloatArray],
    expected: Mapping[str, FloatArray],
    exact: Mapping[str, Array],
    jumps: Mapping[str, float],
) -> None:
    """Assert each gradient to be within 1e-4 of torch's, relative to its largest value.

    Or nearer to `exact`, torch's in float64, than torch's own is or than twice what that `jumps`.
    A gradient that is 0 there, as that of a bias in front of a norm, is rounding alone, and is to
    be as small.
    """
    assert got.keys() == expected.keys()
    got = {name: grad for name, grad in got.items() if grad.size}
    largest = max(float(np.abs(grad).max(initial=0.0)) for grad in exact.values())
    for name in got:
        grad = expected[name]
        own_error = max(np.abs(grad - exact[name]).max(), 2.0 * jumps[name])
        if np.abs(exact[name]).max() <= ZERO * largest:
            assert np.abs(got[name]).max() <= ZERO * largest, name
        elif np.abs(got[name] - exact[name]).max() > own_error:
            assert_close(got[name], grad, 1e-4, name)
    assert sum(bool(np.abs(grad).max() > ZERO * largest) for grad in got.values()) > len(got) / 2


def assert_as_torch(module: Any, inputs: Sequence[Array], seed: int = 0) -> Model:
    """Import a module and assert names, logits in both modes and gradients; return the model."""
    double = module_copy(module).double()
    model = imported(module, inputs)
    names = [name for name, _ in module.named_parameters()]
    assert [spec.name for spec in model.parameters()] == names
    assert set(model.layer_names) <= {name for name, _ in module.named_modules()}
    with torch.no_grad():
        logits = first_of(module.eval()(*tensors(inputs)))
    assert_close(evaluated(model, inputs), logits.numpy(), 1e-5, "evaluation")
    labels = labels_for(logits, np.random.default_rng(seed))
    ours, torchs = emulated(model, inputs, labels), of_torch(module, inputs, labels)
    floats = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs]
    exact = of_torch(module_copy(double), floats, labels)
    jumps = jumps_of(double, floats, labels, exact.grads)
    assert_close(ours.logits, torchs.logits, 1e-5, "training")
    assert_gradients_close(ours.grads, torchs.grads, exact.grads, jumps)
    return model
