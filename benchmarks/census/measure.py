"""What a net of the census shows: whether it goes in, and how near it is to its module in torch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

import policysearch
from benchmarks.census.edges import MOST, Edge, other_sides
from benchmarks.census.net import Net
from policysearch.emulator.compile import Step, compile_graph
from policysearch.export.torch import export
from policysearch.export.torch_runs import runs
from policysearch.importers.stand_ins import module_copy
from policysearch.nn.model import OWN_LOSS, Model
from policysearch.ops import attention_blocks
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import feed_constants, feed_inputs, feed_masks, feed_scalars
from policysearch.train.step import trace_step
from policysearch.values import InputError
from policysearch.verify.gpu_rounding import LOW, AsAGpu, written_out

BATCH = 4
LOSS = "token_cross_entropy"
HALF = "torch.autocast.bfloat16"
NOISE = 1e-7
"""Relative jitter of the parameters that shows how far rounding moves torch itself."""
SINGLE, LEAST = 3.0, 1e-6
"""So many times torch's own error is allowed in float32; the second is for all."""
COPIES = 3
SAME = 1e-9
"""So near, in float64, a batch in another order gives the same: nothing but sums is ordered."""

Array = NDArray[Any]
Inputs = tuple[Any, ...]


class MovedSums(AsAGpu):
    """Torch whose products are off by what another order of their sums may do.

    They are added up in float64, moved by normal noise of the size of one float32 rounding of the
    sum of all magnitudes, and rounded in the same places. Other sums in float32 are moved by one
    rounding of theirs. Jitter of the parameters does not show this: weights lose it when they are
    cast. Of equal values, many in 16 bits, `topk` takes others.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._noise = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is aten.topk.default:
            return self._others_of_equal(*args, **(kwargs or {}))
        if function not in PRODUCTS or args[0].dtype not in (*LOW, torch.float32):
            made = super().__torch_dispatch__(function, types, args, kwargs)
            single = function in SUMS and made.dtype == torch.float32
            return self._moved(made, made.abs()) if single else made
        wide = [x.double() if isinstance(x, torch.Tensor) else x for x in args]
        sizes = [x.abs() if isinstance(x, torch.Tensor) else x for x in wide]
        made, bounds = (function(*given, **(kwargs or {})) for given in (wide, sizes))
        if isinstance(made, torch.Tensor):
            return self._moved(made, bounds).to(args[0].dtype)
        pairs = zip(made, bounds, strict=True)
        return tuple(x if x is None else self._moved(x, b).to(args[0].dtype) for x, b in pairs)

    def _others_of_equal(self, x: Any, k: int, dim: int = -1, *options: Any) -> Any:
        order = torch.randperm(x.shape[dim], generator=self._noise)
        values, places = aten.topk(x.index_select(dim, order), k, dim, *options)
        return values, order[places]

    def _moved(self, sums: Any, bounds: Any) -> Any:
        drawn = torch.randn(sums.shape, generator=self._noise, dtype=sums.dtype)
        return sums + ROUNDING * bounds * drawn


ROUNDING = 2.0**-24
aten = torch.ops.aten
SUMS = (
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim),
    *(aten._softmax.default, aten._softmax_backward_data.default),
    *(aten._log_softmax.default, aten._log_softmax_backward_data.default),
)
PRODUCTS = (
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    *(aten.convolution.default, aten.convolution_backward.default),
)


@dataclass(frozen=True)
class Values:
    """A loss and the gradients by parameter, in float64."""

    loss: float
    grads: Mapping[str, Array]


@dataclass(frozen=True)
class Distance:
    """How far `loss` and gradients are off, and how far torch is (`own_loss`, `own_grads`).

    A gradient counts by its largest error over the largest gradient of the net.
    """

    loss: float
    grads: float
    own_loss: float
    own_grads: float

    def within(self, factor: float, least: float) -> bool:
        """Return whether both are at most `factor` times torch's own, or `least`."""
        return self.loss <= max(factor * self.own_loss, least) and self.grads <= max(
            factor * self.own_grads, least
        )


@dataclass(frozen=True)
class Verdict:
    """What became of a net: why it was refused ("" where it went in), and its distances.

    A net that `draws` in training is not compared; `half` is None where torch cannot run it, and
    `summed` is the same with what an order of sums moves (MovedSums) counted as torch's own, and
    `edged` is `single` with elements of rectifiers at the edge of 0 on the other side in torch.
    """

    refusal: str = ""
    draws: bool = False
    single: Distance | None = None
    half: Distance | None = None
    summed: Distance | None = None
    edged: Distance | None = None


def verdict(net: Net) -> Verdict:
    """Import a net and compare one step with torch, in float32 and in bfloat16."""
    torch.manual_seed(0)
    module = shaken(net.make())
    inputs = net.inputs(torch.Generator().manual_seed(1), BATCH)
    try:
        model = policysearch.from_torch(module, inputs, loss=net.loss, labels=net.labels)
    except InputError as error:
        return Verdict(refusal=str(error))
    with contextlib.suppress(InputError):  # what torch runs on a CPU, where the net calls it
        model = model.with_attention("flash")
    labels = labels_of(net, module, inputs)
    if len({of_torch(net, module, inputs, labels).loss for _ in range(2)}) > 1:
        return Verdict(draws=True)
    single = _single(net, module, model, inputs, labels)
    edged = None
    if not single.within(SINGLE, LEAST):
        with contextlib.suppress(RuntimeError, NotImplementedError):  # not in float64
            edged = _edged(single, net, module, model, inputs, labels)
    half, summed = _half(net, module, model, inputs, labels) or (None, None)
    return Verdict(single=single, half=half, summed=summed, edged=edged)


def shaken(module: Any) -> Any:
    """Return the module with parameters off the ones and zeros that hide what is not read."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter += 0.1 * torch.randn_like(parameter)
    return module


def labels_of(net: Net, module: Any, inputs: Inputs) -> Any:
    """Return the labels: the input that takes them, or classes drawn for the first result."""
    if net.loss == OWN_LOSS:
        return None
    logits = first_of(module_copy(module).train()(*inputs))
    return torch.randint(logits.shape[-1], logits.shape[:-1], generator=torch.Generator())


def first_of(result: Any) -> Any:
    """Return the first tensor that a module returns, in a tuple, a dict or alone."""
    if isinstance(result, torch.Tensor):
        return result
    return first_of(next(iter(result.values())) if isinstance(result, Mapping) else result[0])


def loss_of(net: Net, result: Any, labels: Any) -> Any:
    """Return the loss of what a module returns: its own scalar, or cross entropy."""
    if net.loss == OWN_LOSS:
        results = [result] if isinstance(result, torch.Tensor) else list(_flat(result))
        return next(x for x in results if x.dim() == 0)
    logits = first_of(result)
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    )


def _flat(result: Any) -> Sequence[Any]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [x for value in result.values() for x in _flat(value)]
    return [x for value in result for x in _flat(value)] if isinstance(result, list | tuple) else []


def of_torch(
    net: Net,
    module: Any,
    inputs: Inputs,
    labels: Any,
    changed: Callable[[Any], Any] = lambda module: module,
) -> Values:
    """Return the loss and gradients of a copy of the module, in the format of its parameters."""
    module = changed(module_copy(module).train())
    dtype = next(p.dtype for p in module.parameters())
    cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    loss = loss_of(net, module(*cast), labels)
    loss.backward()
    named = module.named_parameters()
    grads = {n: p.grad.to_dense().double().numpy() for n, p in named if p.grad is not None}
    return Values(float(loss.detach()), grads)


def emulated(model: Model, policy: Policy, inputs: Inputs, labels: Any) -> Values:
    """Return the loss and gradients of the first step under `policy`."""
    step = _step(model, policy, inputs, labels)
    names = [name for name, _ in step.graph.outputs if name.startswith("grad:")]
    grads = {n.removeprefix("grad:"): step.value(n).astype(np.float64) for n in names}
    return Values(float(step.value("loss")), grads)


def vectors() -> Any:
    """Return a context where flash attention has the vectors that torch has on this processor."""
    width = 8 if torch.backends.cpu.get_cpu_capability() == "AVX2" else attention_blocks.VECTOR
    return mock.patch.object(attention_blocks, "VECTOR", width)


def _step(model: Model, policy: Policy, inputs: Inputs, labels: Any) -> Step:
    graph = trace_step(model, LOSS, Optimizer("sgd"), len(inputs[0]))
    step = compile_graph(apply_policy(graph, policy))
    feed(step, model, inputs, labels)
    with vectors():
        step.forward_backward()
    return step


def feed(step: Step, model: Model, inputs: Inputs, labels: Any) -> None:
    """Write the model's arrays and one batch into a step."""
    for name, value in model.init(np.random.default_rng(0)).items():
        if name in step.arrays:
            step.arrays[name][...] = value
    arrays = [x.numpy() for x in inputs]
    if labels is None:
        named = [item.name == model.labels for item in model.inputs]
        classes = next((a for a, label in zip(arrays, named, strict=True) if label), arrays[0])
        fed = [a for a, label in zip(arrays, named, strict=True) if not label]
    else:
        classes, fed = labels.numpy(), arrays
    feed_constants(step, model)
    feed_inputs(step, model, fed, classes)
    feed_masks(step, 0, 0)
    feed_scalars(step, 1.0)


def _single(net: Net, module: Any, model: Model, inputs: Inputs, labels: Any) -> Distance:
    """Compare with torch in float64, or in float32 where the net itself says that format."""
    ours = emulated(model, preset("float32", model.layer_names), inputs, labels)
    plain = of_torch(net, module, inputs, labels)
    try:
        double = module_copy(module).to(torch.float64)
        exact = of_torch(net, double, inputs, labels)
    except (RuntimeError, NotImplementedError):
        return distance(ours, list(_jittered(net, module, inputs, labels)), plain)
    own = [plain, *_jittered(net, module, inputs, labels)]
    order = torch.arange(len(inputs[0]) - 1, -1, -1)
    turned = tuple(x[order] for x in inputs), None if labels is None else labels[order]
    with contextlib.suppress(RuntimeError):  # lengths that have to fall, say
        same = distance(of_torch(net, double, *turned), [exact], exact)
        if max(same.loss, same.grads) < SAME:
            own.append(of_torch(net, module, *turned))
    return distance(ours, own, exact)


def _edged(
    first: Distance, net: Net, module: Any, model: Model, inputs: Inputs, labels: Any
) -> Distance:
    """Return the distance with elements of rectifiers at their edges on the other side in torch.

    They are taken there one by one, each for good where it brings torch nearer. `first` is the
    distance with none.
    """
    ours = emulated(model, preset("float32", model.layer_names), inputs, labels)
    double = module_copy(module).to(torch.float64)

    def tried(taken: frozenset[Edge]) -> tuple[Distance, list[tuple[float, Edge]]]:
        with other_sides(taken) as near:
            exact = of_torch(net, double, inputs, labels)
        off = distance(ours, [exact], exact)
        return replace(first, loss=off.loss, grads=off.grads), near

    taken = frozenset[Edge]()
    best, near = tried(taken)
    for _, edge in sorted(near)[:MOST]:
        now, _ = tried(taken | {edge})
        if now.grads < best.grads:
            best, taken = now, taken | {edge}
        if best.within(SINGLE, LEAST):
            break
    return best


def _jittered(net: Net, module: Any, inputs: Inputs, labels: Any) -> Iterator[Values]:
    """Yield what torch gives in float32 that is as right: moved by a bit, or summed otherwise.

    A ReLU at its edge falls on either side in float32: this shows how far that moves torch.
    """
    for seed in range(COPIES):
        yield of_torch(net, module, inputs, labels, partial(moved, seed=seed))
        noise = torch.Generator().manual_seed(seed)
        yield of_torch(net, module, tuple(_moved_input(x, noise) for x in inputs), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the TF32 that only Intel's GPUs have
        with torch.backends.mkldnn.flags(enabled=False):
            yield of_torch(net, module, inputs, labels)


def _moved_input(x: Any, noise: torch.Generator) -> Any:
    """Return floats, each of which is one unit of the last place up or down, or none."""
    if not x.is_floating_point():
        return x
    steps = torch.randint(-1, 2, x.shape, generator=noise, dtype=x.dtype)
    return torch.where(steps == 0, x, torch.nextafter(x, x + steps))


def _half(
    net: Net, module: Any, model: Model, inputs: Inputs, labels: Any
) -> tuple[Distance, Distance] | None:
    """Compare the bfloat16 autocast with the exported file; None where torch cannot run it.

    Torch's own error is first that of jitter alone, then also that of MovedSums.
    """
    policy = preset(HALF, model.layer_names)
    space: dict[str, Any] = {"__name__": "exported"}

    def run(seed: int | None, mode: AsAGpu) -> Values:
        with mode:
            return of_torch(
                net, module, inputs, labels, lambda x: space["apply_policy"](moved(x, seed))
            )

    with mock.patch.object(torch._VF, "lstm", written_out(torch._VF.lstm)):
        exec(export(policy, model), space)
        try:
            own, exact = [run(seed, AsAGpu()) for seed in range(COPIES)], run(None, AsAGpu())
            others = [run(None, MovedSums(seed)) for seed in range(COPIES)]
        except (RuntimeError, NotImplementedError):
            return None
    ours = emulated(model, runs(policy, model), inputs, labels)
    return distance(ours, own, exact), distance(ours, [*own, *others], exact)


def moved(module: Any, seed: int | None) -> Any:
    """Return the module with parameters moved by NOISE, or as they are without a seed."""
    if seed is not None:
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in module.parameters():
                p *= 1 + NOISE * torch.randn(p.shape, generator=noise, dtype=p.dtype)
    return module


def distance(ours: Values, own: Sequence[Values], exact: Values) -> Distance:
    """Return how far `ours` is from `exact`, and the furthest of `own` is."""

    def of(values: Values) -> tuple[float, float]:
        if values.grads.keys() != exact.grads.keys():
            return np.inf, np.inf
        sizes = (np.abs(g[np.isfinite(g)]) for g in exact.grads.values())
        largest = max(float(x.max(initial=0.0)) for x in sizes)
        off = (_off(values.grads[n], g) for n, g in exact.grads.items())
        worst = max(float(x.max(initial=0.0)) for x in off)
        loss = float(_off(np.array(values.loss), np.array(exact.loss)))
        return loss / max(abs(exact.loss), 1e-30), worst / max(largest, 1e-30)

    losses, grads = zip(*(of(values) for values in own), strict=True)
    return Distance(*of(ours), max(losses), max(grads))


def _off(values: Array, exact: Array) -> Array:
    """Return how far each value is off: by nothing where it is as little finite, else by inf."""
    same = (values == exact) | (np.isnan(values) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        off = np.abs(values - exact)
    return np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
