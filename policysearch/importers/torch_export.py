"""From a torch module to a model, over torch.export before decomposition."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from policysearch.graph import FloatArray
from policysearch.importers.program import Extent, Program
from policysearch.importers.torch_model import TorchModel
from policysearch.importers.torch_reader import Reader
from policysearch.nn.model import OWN_LOSS
from policysearch.values import InputError

EVALUATES_OTHERWISE = "evaluates_otherwise"
"""Attribute of a module whose forward pass says that it is another in evaluation."""


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    loss: str = "token_cross_entropy",
    labels: str = "",
    name: str = "",
) -> TorchModel:
    """Return a torch module as a model that studies train, price and search policies for.

    `module` is an nn.Module, whose values every seed starts from, or a function without arguments
    that makes one: it is called anew for every seed. `example_inputs` is a tensor or a tuple of
    them, as `forward` takes them, the batch along axis 0. `loss` is one of those that a task
    can name, of the module's first result, or "own" where the module returns its loss; `labels` is
    then the argument that takes the labels of the data set. Layers are called as in
    `named_modules()`, parameters as in `named_parameters()`. Raises InputError that names every
    call of the module that has no rule, at once.
    """
    draw = None if isinstance(module, torch.nn.Module) else _Draw(module)
    net = module if draw is None else draw.module(0)
    example = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    reader = Reader(net, example)
    evaluation, constants = _evaluation(reader, example)
    model = TorchModel(
        name=name or type(net).__name__,
        inputs=reader.inputs,
        program=reader.program(),
        specs=reader.parameters(),
        kept=reader.statistics(),
        initial=arrays_of(net, reader.kept_names(), copied=draw is None),
        fixed={**reader.constants, **constants},
        loss=loss,
        labels=reader.input_name(labels),
        draw=draw and draw.of(reader.kept_names()),
        types={n: type(m).__name__ for n, m in net.named_modules(remove_duplicate=False)},
        source=module,
        evaluation=evaluation,
    )
    _check(model)
    return model


def _evaluation(
    reader: Reader, example: tuple[Any, ...]
) -> tuple[Program | None, Mapping[str, FloatArray]]:
    """Return the program of evaluation, where that is another, and its constants."""
    said = getattr(reader.module, EVALUATES_OTHERWISE, False) is True
    if not (said or reader.evaluates_otherwise):
        return None, {}
    moved = [spec.name for spec in reader.statistics()]
    other = Reader(reader.module, example, training=False, moved=moved)
    return other.program(), other.constants


def _check(model: TorchModel) -> None:
    """Raise InputError for labels that are no input, or a first result without rows of examples."""
    names = [item.name for item in model.inputs]
    if model.loss == OWN_LOSS and model.labels and model.labels not in names:
        listed = ", ".join(names)
        raise InputError(
            f"labels: {model.labels!r}; expected one of {listed}, the arguments with example "
            "inputs: one that takes labels needs an example, too"
        )
    shapes = {call.name: call.shape for call in model.program.calls if not call.fault}
    shape = shapes.get(model.program.results[0])
    if model.loss != OWN_LOSS and shape is not None and shape[:1] != (Extent(0, 1),):
        given = ["batch" if isinstance(extent, Extent) else extent for extent in shape]
        raise InputError(f"model {model.name}, result: {given}; expected the batch along axis 0")
    _ = model.layer_names  # traces, so that what cannot be imported is said now


class _Draw:
    """Makes a module anew for a seed; kept apart from the model so that it can be pickled."""

    def __init__(self, make: Callable[[], Any], names: Sequence[str] = ()) -> None:
        self._make, self._kept = make, tuple(names)

    def of(self, names: Sequence[str]) -> _Draw:
        return _Draw(self._make, names)

    def module(self, seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._make()
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"module: {type(module).__name__}; expected an nn.Module or its maker")
        return module

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self._make)
        except Exception as error:
            raise InputError(
                f"module: {self._make!r} cannot be sent to training processes; expected a class or "
                "function at the top level of a file, or 0 processes"
            ) from error
        return self.__dict__

    def __call__(self, seed: int) -> Mapping[str, FloatArray]:
        return arrays_of(self.module(seed), self._kept, copied=False)


def arrays_of(module: Any, names: Sequence[str], *, copied: bool = True) -> dict[str, FloatArray]:
    """Return the parameters and buffers called `names`; `copied`, or in the module's own memory."""
    there = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    arrays = {n: there[n].detach().to(torch.float32).cpu().numpy() for n in names}
    return {n: array.copy() for n, array in arrays.items()} if copied else arrays
