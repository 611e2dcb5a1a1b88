"""A plain or Accelerate loop as a task: its module, loader, loss, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from policysearch.data.spool import LARGEST_BYTES, SpooledDataset
from policysearch.files import RESULTS_FOLDER
from policysearch.importers.torch_export import from_torch
from policysearch.nn.model import OWN_LOSS
from policysearch.scripts.batches import VALIDATION_BATCHES, Drawing, seeded, spooled
from policysearch.scripts.checkpoints import restored
from policysearch.scripts.recipe import Read, read_optimizer, recorded
from policysearch.scripts.stepped import Layout, Step, Stepping, layout_of, stepped
from policysearch.train.losses import LOSSES
from policysearch.train.script import Script, check_recipe
from policysearch.values import InputError, one_of

TAIL_SHARE = 6
"""The reported loss is that of the last steps, one in so many."""


def from_loader(
    module: Any,
    loader: Any,
    *,
    loss: str | Callable[..., Any],
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    labels: str = "",
    optimizer: Any = None,
    scheduler: Any = None,
    accumulation_steps: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    precision: str = "float32",
    validation: Any = None,
    validation_batches: int = VALIDATION_BATCHES,
    pads: Mapping[str, float] | None = None,
    length: int | None = None,
    init_from: str | Path | None = None,
    spool: str | Path | None = None,
    spool_bytes: int = LARGEST_BYTES,
    name: str = "",
    **recipe: Any,
) -> Script:
    """Return a training loop of torch's as a task whose batches are those of its `loader`.

    `module` is an nn.Module, whose values every seed starts from, or a function that makes one.
    `loss` is a function of the module and a batch that returns the loss, an nn.Module of outputs
    and labels, or the name of a loss of a task. Batches are tensors, or lists, tuples and dicts of
    them, the examples along axis 0. They are drawn once, under `seed`, for so many `steps` of
    `accumulation_steps` batches or so many `epochs`, and kept in the file `spool` (by default
    results/NAME.spool) of at most `spool_bytes`; `validation` is another loader, of which
    `validation_batches` are kept. Tensors called by the keys of `pads` are filled up with their
    values to `length` along axis 1.

    `optimizer` and `scheduler` (stepped once a step) are torch's and say rate, groups, schedule and
    the state to start from; `recipe` are keys of [task] in their place. `precision` is what the
    loop runs at: a preset, or "bf16" and "fp16" for torch's autocast. `init_from` is a checkpoint
    that is loaded into the module, optimizer and scheduler first. Raises InputError for a loader
    that yields nothing, changes shapes or fails, and for what is no part of a task.
    """
    check_recipe(recipe)
    if init_from is not None:
        restored(init_from, module, optimizer, [scheduler] if scheduler is not None else [])
    drawing = Drawing(
        *(loader, steps, epochs, accumulation_steps, seed, validation, validation_batches),
        pads=pads or {},
        length=length,
    )
    step = step_of(loss)
    read = Read({}) if optimizer is None else read_optimizer(optimizer, _instance(module))
    places = Places(name or _name(module), spool, spool_bytes, labels)
    script = script_of(module, drawing, step, places, read, loss if isinstance(loss, str) else "")
    given = {"clip_norm": clip_norm, "clip_value": clip_value}
    held = {key: value for key, value in given.items() if value is not None}
    if scheduler is not None:
        if optimizer is None:
            raise InputError("scheduler: without its optimizer; expected both")
        held |= recorded(optimizer, [(scheduler, 1)], script.recipe["steps"])
    return replace(
        script, recipe={**script.recipe, **held, **recipe}, baseline=baseline_of(precision)
    )


def _instance(module: Any) -> Any:
    if isinstance(module, torch.nn.Module):
        return module
    raise InputError("optimizer: beside a function that makes modules; expected the module itself")


def _name(module: Any) -> str:
    own = type(module).__name__ if isinstance(module, torch.nn.Module) else ""
    return own or getattr(module, "__name__", "script")


class Places:
    """Where batches are kept, and what a task is called."""

    def __init__(
        self,
        name: str,
        spool: str | Path | None = None,
        limit: int = LARGEST_BYTES,
        labels: str = "",
    ) -> None:
        self.name, self.limit, self.labels = name, limit, labels
        self.spool = RESULTS_FOLDER / f"{name}.spool" if spool is None else Path(spool)


def step_of(loss: str | Callable[..., Any]) -> Step | None:
    """Return the training step of a loss; None for one that has a name."""
    if isinstance(loss, str):
        one_of("loss", loss, LOSSES)
        return None
    if isinstance(loss, torch.nn.Module):
        return Criterion(loss)
    if not callable(loss):
        valid = "a function of module and batch, an nn.Module or a name"
        raise InputError(f"loss: {type(loss).__name__}; expected {valid}")
    return loss


class Criterion:
    """A step of a loss that is a module: of the outputs and the last of the batch."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def __call__(self, module: Any, batch: Any) -> Any:
        if not isinstance(batch, list | tuple) or len(batch) < 2:
            given = type(batch).__name__
            raise InputError(f"batch: {given} with loss a module; expected (inputs..., labels)")
        return self._loss(module(*batch[:-1]), batch[-1])


def script_of(
    module: Any,
    drawing: Drawing,
    step: Step | None,
    places: Places,
    read: Read,
    loss: str = "",
    taken: Sequence[str] = (),
) -> Script:
    """Return the script of a step (or of a named loss) over the batches of a drawing."""
    first = drawing.first()
    extra = drawing.counted([first]) if drawing.counted else {}
    batch = {**first, **extra} if extra else first
    layout = layout_of(batch)
    place = layout.labels(places.labels)
    if step is None and place is None:
        raise InputError(f"loss: {loss!r} of batches without labels; expected labels")
    data, left_out = spooled(drawing, layout, place, places.name, places.spool, places.limit)
    with seeded(drawing.seed):
        model = _model(module, step, layout, place, data, places.name, loss)
    model = replace(model, optimizer_state=read.states, updates_done=read.updates)
    steps = data.train_count // (data.loader_batch * drawing.accumulation_steps)
    recipe = {
        **read.recipe,
        "batch_size": data.loader_batch,
        "accumulation_steps": drawing.accumulation_steps,
        "steps": steps,
        "tail_steps": max(1, steps // TAIL_SHARE),
    }
    missing = [f"left out: {count} batches {why}" for why, count in left_out.items()]
    lines = [
        f"batches: {data.train_count // data.loader_batch} of {data.loader_batch}, drawn under "
        f"seed {drawing.seed}, in {places.spool}",
        "validation: "
        + ("its loader" if drawing.validation is not None else "batches after the last step"),
        *([f"starts after {read.updates} updates"] if read.updates else []),
    ]
    return Script(model, data, recipe, taken=(*lines, *missing, *taken))


def _model(
    module: Any,
    step: Step | None,
    layout: Layout,
    place: int | None,
    data: SpooledDataset,
    name: str,
    loss: str,
) -> Any:
    """Return the model, with examples of the data as its inputs."""
    arrays = [array[:2].copy() for array in data.inputs]
    if step is None:
        examples = tuple(torch.from_numpy(array) for array in arrays)
        return from_torch(module, examples, loss=loss, name=name)
    label = ""
    if place is not None:
        arrays.insert(place, data.labels[:2].copy())
        label = layout.leaves[place].name
    examples = tuple(torch.from_numpy(array) for array in arrays)
    made = Stepping(module, step, layout)
    instance = isinstance(module, torch.nn.Module)
    source = stepped(module, step, layout) if instance else made
    return from_torch(source, examples, loss=OWN_LOSS, labels=label, name=name)


def baseline_of(precision: str) -> str:
    """Return the preset of a precision, as Accelerate, Lightning or a preset calls it."""
    low = {"bf16": "bfloat16", "fp16": "float16", "bf16-mixed": "bfloat16", "16-mixed": "float16"}
    if precision in low:
        return f"torch.autocast.{low[precision]}"
    return "float32" if precision in ("no", "32-true", "32") else precision
