"""An unmodified LightningModule as a task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from policysearch.train.scripts.batches import seeded
from policysearch.train.scripts.checkpoints import steps_left
from policysearch.train.scripts.loader import Kept, baseline_of, script_of
from policysearch.train.scripts.recipe import loss_scale_of, read_optimizer, recorded
from policysearch.train.scripts.script import Script
from policysearch.values import USER_FAULTS, InputError

PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")

TAKEN = (
    "loss: what training_step returns of a batch; what it logs is left out",
    "optimisation: automatic, with the one optimizer of configure_optimizers and its schedulers",
    "left out: callbacks, hooks (on_..., optimizer_step), loggers, checkpoints, strategies",
)

Stepping = list[tuple[Any, int]]
"""Schedulers, and once in how many steps each steps."""


def from_lightning(
    module: Any,
    datamodule: Any,
    trainer: Any = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    init_from: str | Path | None = None,
    **kept: Any,
) -> Script:
    """Return what a Trainer of Lightning would train, as a task; the module is left as it is.

    Taken are the module's `training_step` (a loss of a batch, with one optimizer and automatic
    optimisation), its `configure_optimizers`, and the loaders of `datamodule`, which may also be a
    DataLoader; of the `trainer`, where there is one, steps or epochs, accumulation, clipping and
    precision, which is the baseline. `steps` or `epochs` are in place of the trainer's. `init_from`
    is a checkpoint that it wrote: the task goes on from there, with batches from the beginning.
    `kept` are fields of `Kept`. InputError for what is not taken.
    """
    _check(module)
    count = int(getattr(trainer, "accumulate_grad_batches", 1))
    with seeded(seed):
        loader, validation = _loaders(datamodule)
    per_epoch = _per_epoch(loader, count)
    steps = _steps(trainer, steps, epochs, per_epoch)
    optimizer, schedulers = _optimizers(module, steps, per_epoch)
    steps = steps_left(init_from, module, optimizer, [row for row, _ in schedulers], steps)
    schedule = recorded(optimizer, schedulers, steps)
    how = Kept(**{"validation": validation, **kept})
    drawing = how.drawing(loader, seed, steps=steps, accumulation_steps=count, epoch_ends=True)
    read = read_optimizer(optimizer, module)
    script = script_of(module, drawing, _step, how, read, taken=TAKEN)
    recipe = {**script.recipe, **schedule, **_clipping(trainer)}
    scaler = getattr(getattr(trainer, "precision_plugin", None), "scaler", None)
    return script.taking(recipe, _baseline(trainer), loss_scale_of(scaler))


def _check(module: Any) -> None:
    if not hasattr(module, "training_step"):
        raise InputError(f"module: {type(module).__name__}; expected a LightningModule")
    if not getattr(module, "automatic_optimization", True):
        raise InputError("module: automatic_optimization = False; expected True")


def _step(module: Any, batch: Any) -> Any:
    """Return the loss of `training_step`; InputError where it gives none."""
    given = module.training_step(batch, 0)
    loss = given.get("loss") if isinstance(given, Mapping) else given
    if not isinstance(loss, torch.Tensor):
        raise InputError(f"training_step returned {type(given).__name__}; expected a loss")
    return loss


def _loaders(datamodule: Any) -> tuple[Any, Any]:
    """Return the loader that trains, and the one that validates, if there is one."""
    if not hasattr(datamodule, "train_dataloader"):
        return datamodule, None
    try:
        datamodule.prepare_data()
        datamodule.setup("fit")
        train = datamodule.train_dataloader()
    except USER_FAULTS as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"datamodule: {type(error).__name__}: {reason}; expected it to give a loader"
        ) from error
    try:
        validation = datamodule.val_dataloader()
    except Exception:  # Lightning's own raises where there is none
        validation = None
    first = isinstance(validation, list | tuple) and validation
    return train, validation[0] if first else validation or None


def _per_epoch(loader: Any, count: int) -> int:
    """Return the whole steps of an epoch; those of one without a length never end."""
    try:
        return max(1, len(loader) // count)
    except TypeError:
        return 2**31


def _steps(trainer: Any, steps: int | None, epochs: float | None, per_epoch: int) -> int:
    if steps is None and epochs is None:
        most, ends = getattr(trainer, "max_steps", -1), getattr(trainer, "max_epochs", None)
        steps = most if most and most > 0 else None
        epochs = ends if steps is None and ends and ends > 0 else None
    if steps is not None:
        return steps
    if epochs is None or per_epoch == 2**31:
        raise InputError("steps: not said; expected steps, or a trainer with max_steps")
    return math.ceil(epochs * per_epoch)


def _optimizers(module: Any, steps: int, per_epoch: int) -> tuple[Any, Stepping]:
    """Return the optimizer and schedulers of the module; InputError for several optimizers."""
    before, epochs = module._trainer, math.ceil(steps / per_epoch)
    # what `configure_optimizers` may ask of the trainer
    lengths = {"max_steps": steps, "max_epochs": epochs, "estimated_stepping_batches": steps}
    module._trainer = SimpleNamespace(**lengths)
    try:
        given = module.configure_optimizers()
    finally:
        module._trainer = before
    schedulers: Any = []
    optimizers: Any = [given]
    if isinstance(given, Mapping):
        optimizers = [given["optimizer"]]
        schedulers = [given["lr_scheduler"]] if "lr_scheduler" in given else []
    elif isinstance(given, list | tuple):
        two = len(given) == 2 and isinstance(given[0], list | tuple)
        optimizers, schedulers = given if two else (given, [])
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        raise InputError(f"configure_optimizers: {len(optimizers)} optimizers; expected one")
    several = schedulers if isinstance(schedulers, list | tuple) else [schedulers]
    return optimizers[0], [_scheduler_interval(row, per_epoch) for row in several]


def _scheduler_interval(row: Any, per_epoch: int) -> tuple[Any, int]:
    """Return a scheduler and once in how many steps it steps; by epoch if nothing is said."""
    held = row if isinstance(row, Mapping) else {"scheduler": row}
    every = int(held.get("frequency") or 1)
    by_epoch = held.get("interval", "epoch") == "epoch"
    return held["scheduler"], every * (per_epoch if by_epoch else 1)


def _clipping(trainer: Any) -> dict[str, float]:
    most = getattr(trainer, "gradient_clip_val", None)
    if not most:
        return {}
    kind = str(getattr(trainer, "gradient_clip_algorithm", None) or "norm").rpartition(".")[2]
    return {"clip_value" if kind.lower() == "value" else "clip_norm": float(most)}


def _baseline(trainer: Any) -> str:
    given = str(getattr(trainer, "precision", "32-true"))
    if given not in PRECISIONS:
        raise InputError(f"trainer precision: {given}; expected one of {', '.join(PRECISIONS)}")
    return baseline_of(given)
