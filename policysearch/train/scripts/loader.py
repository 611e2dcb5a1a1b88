"""A plain or Accelerate loop as a task: its module, loader, loss, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from policysearch.data.spool import LARGEST_BYTES, SpooledDataset
from policysearch.files import RESULTS_FOLDER
from policysearch.importers.torch_export import from_torch
from policysearch.nn.model import OWN_LOSS
from policysearch.policy.presets import PRESETS
from policysearch.train.scripts.batches import Drawing, seeded, spooled
from policysearch.train.scripts.checkpoints import restored
from policysearch.train.scripts.recipe import Read, loss_scale_of, read_optimizer, recorded
from policysearch.train.scripts.script import Script, check_recipe
from policysearch.train.scripts.stepped import (
    Layout,
    Step,
    Stepping,
    layout_of,
    step_of,
)
from policysearch.values import InputError, one_of

AFTER = "batches after the last step, of the same examples: `validation` takes a loader of others"
"""What validates where there is no loader for it."""

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
    optimizer: Any = None,
    scheduler: Any = None,
    precision: str = "no",
    scaler: Any = None,
    init_from: str | Path | None = None,
    **options: Any,
) -> Script:
    """Return a training loop of torch's as a task whose batches are those of its `loader`.

    `module` is an nn.Module, whose values every seed starts from, or a function that makes one.
    `loss` is a function of the module and a batch that returns the loss, a function or nn.Module of
    outputs and labels, or the name of a loss of a task. Batches are tensors, or lists, tuples and
    dicts of them, the examples along axis 0; they are drawn once, under `seed`, for so many `steps`
    or `epochs`, and kept as `Kept` says. torch's `optimizer` and `scheduler` (stepped once a step)
    say rate, groups, schedule and the state to start from. `precision` is what the loop runs at:
    "no", "bf16" or "fp16", or a preset; `scaler` its GradScaler, or its arguments in a dict.
    `init_from` is a checkpoint, loaded into the three first. Other `options` are fields of `Kept`
    and keys of [task]. InputError for what is no part of one.
    """
    kept, recipe = _split(options)
    if init_from is not None:
        restored(init_from, module, optimizer, [] if scheduler is None else [scheduler])
    count, named = recipe.pop("accumulation_steps", 1), loss if isinstance(loss, str) else ""
    read = Read({} if optimizer is None else {"optimizer": optimizer})
    if optimizer is not None and not isinstance(optimizer, str):
        read = read_optimizer(optimizer, _instance(module))
    if steps is not None:  # refused before anything is drawn
        _schedule(optimizer, scheduler, steps)
    drawing = kept.drawing(loader, seed, steps=steps, epochs=epochs, accumulation_steps=count)
    made = script_of(module, drawing, step_of(loss, module, drawing.first), kept, read, named)
    whole = {**made.recipe, **_schedule(optimizer, scheduler, made.recipe["steps"]), **recipe}
    return made.taking(whole, baseline_of(precision), loss_scale_of(scaler))


def _schedule(optimizer: Any, scheduler: Any, steps: int) -> dict[str, Any]:
    if scheduler is None:
        return {}
    if optimizer is None or isinstance(optimizer, str):
        raise InputError("scheduler: without its optimizer; expected both")
    return recorded(optimizer, [(scheduler, 1)], steps)


def _split(options: Mapping[str, Any]) -> tuple[Kept, dict[str, Any]]:
    """Return how batches are kept, and keys of [task]; InputError for what is neither."""
    own = [field.name for field in fields(Kept)]
    recipe = {name: value for name, value in options.items() if name not in own}
    check_recipe(recipe, own)
    return Kept(**{name: value for name, value in options.items() if name in own}), recipe


def _instance(module: Any) -> Any:
    if isinstance(module, torch.nn.Module):
        return module
    raise InputError("optimizer: beside a function that makes modules; expected the module itself")


@dataclass(frozen=True)
class Kept:
    """How batches are kept: in the file `spool`, by default results/NAME.spool.

    It has at most `spool_bytes`. `name` is what the net is called, by default its class;
    `validation` is another loader, of which `validation_batches` are kept; without, of the batches
    after the last step. By default that is 8, of another loader an eighth of those trained on if it
    is more. `labels` names the labels, where they are called otherwise than usual and are not the
    last of a tuple. Tensors called by the keys of `pads` are filled up with their values along axis
    1, to `length` or the longest.
    """

    spool: str | Path | None = None
    spool_bytes: int = LARGEST_BYTES
    name: str = ""
    labels: str = ""
    validation: Any = None
    validation_batches: int | None = None
    pads: Mapping[str, float] = field(default_factory=dict)
    length: int | None = None

    def drawing(self, loader: Any, seed: int, **others: Any) -> Drawing:
        """Return how the batches of `loader` are drawn."""
        own = {key: getattr(self, key) for key in ("validation_batches", "pads", "length")}
        validation = {"validation": self.validation}
        return Drawing(loader, seed=seed, **{**own, **validation, **others})

    def called(self, module: Any) -> str:
        """Return what the net is called."""
        own = type(module).__name__ if isinstance(module, torch.nn.Module) else ""
        return self.name or own or getattr(module, "__name__", "script")

    def place(self, module: Any) -> Path:
        """Return the file."""
        usual = RESULTS_FOLDER / f"{self.called(module)}.spool"
        return usual if self.spool is None else Path(self.spool)


def script_of(
    module: Any,
    drawing: Drawing,
    step: Step | None,
    kept: Kept,
    read: Read,
    loss: str = "",
    taken: Sequence[str] = (),
) -> Script:
    """Return the script of a step (or of a named loss) over the batches of a drawing."""
    layout = layout_of(drawing.first())
    place, name, file = layout.labels(kept.labels), kept.called(module), kept.place(module)
    if step is None and place is None:
        raise InputError(f"loss: {loss!r} of batches without labels; expected labels")
    kept_there = spooled(drawing, layout, place, name, file, kept.spool_bytes)
    data = kept_there.data
    with seeded(drawing.seed):
        stepping = _stepping_module(module, step, layout, place, data)
    with seeded(drawing.seed):
        model = _model(module, stepping, place, data, name, loss)
    model = replace(model, optimizer_state=read.states, updates_done=read.updates)
    count, each = data.train_count // data.loader_batch, drawing.accumulation_steps
    recipe = {
        **read.recipe,
        "batch_size": data.loader_batch,
        "accumulation_steps": each,
        "steps": count // each,
        "tail_steps": max(1, count // each // TAIL_SHARE),
    }
    validates = AFTER if drawing.validation is None else f"{data.validation_count} examples"
    lines = [
        f"batches: {count} of {data.loader_batch} under seed {drawing.seed}, in {file}",
        f"validation: {validates}",
        *([f"outputs: {stepping.place.words}"] if stepping and stepping.place else []),
        *([f"begins after {read.updates} updates"] if read.updates else []),
        *([f"sequences: filled up to {kept_there.length}"] if kept_there.length else []),
        *(f"left out: {place}, words of every example" for place in layout.words),
        *(f"left out: {n} batches {why}" for why, n in kept_there.left_out.items()),
    ]
    return Script(model, data, recipe, taken=(*lines, *taken))


def _stepping_module(
    module: Any, step: Step | None, layout: Layout, place: int | None, data: SpooledDataset
) -> Stepping | None:
    """Return the module as a step, with its outputs where there are labels; None without a step."""
    made = None if step is None else Stepping(module, step, layout)
    if made is None or place is None:
        return made
    return made.placed(_examples(data, place, data.loader_batch), place)


def _examples(data: SpooledDataset, place: int | None, count: int) -> tuple[Any, ...]:
    """Return the first examples as tensors, the labels at their place."""
    arrays = [array[:count].copy() for array in data.inputs]
    if place is not None:
        arrays.insert(place, data.labels[:count].copy())
    return tuple(torch.from_numpy(array) for array in arrays)


def _model(
    module: Any,
    stepping: Stepping | None,
    place: int | None,
    data: SpooledDataset,
    name: str,
    loss: str,
) -> Any:
    """Return the model, with examples of the data as its inputs."""
    if stepping is None:
        return from_torch(module, _examples(data, None, 2), loss=loss, name=name)
    label = "" if place is None else stepping.layout.leaves[place].name
    instance = isinstance(module, torch.nn.Module)
    source = stepping() if instance else stepping
    return from_torch(source, _examples(data, place, 2), loss=OWN_LOSS, labels=label, name=name)


def baseline_of(precision: str) -> str:
    """Return the preset of a precision, as Accelerate, Lightning or a preset calls it."""
    low = {"bf16": "bfloat16", "fp16": "float16", "bf16-mixed": "bfloat16", "16-mixed": "float16"}
    if precision in low:
        return f"torch.autocast.{low[precision]}"
    if precision in ("no", "32-true"):
        return "float32"
    return one_of("precision", precision, (*low, "no", *PRESETS))
