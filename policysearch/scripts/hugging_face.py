"""An unmodified Trainer of Hugging Face as a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from policysearch.data.spool import LARGEST_BYTES
from policysearch.scripts.batches import VALIDATION_BATCHES, Drawing, seeded
from policysearch.scripts.checkpoints import restored, steps_done
from policysearch.scripts.loader import Places, baseline_of, script_of
from policysearch.scripts.recipe import read_optimizer, recorded
from policysearch.train.script import Script
from policysearch.values import InputError

COUNT = "num_items_in_batch"
"""What the labels of all micro-batches of a step are called where the loss is divided by them."""

REFUSED: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("deepspeed", lambda args: bool(args.deepspeed)),
    ("fsdp", lambda args: bool(getattr(args, "fsdp", None))),
    ("neftune_noise_alpha", lambda args: args.neftune_noise_alpha is not None),
    ("auto_find_batch_size", lambda args: bool(args.auto_find_batch_size)),
    ("lr_scheduler_type reduce_lr_on_plateau", lambda a: "plateau" in str(a.lr_scheduler_type)),
    ("bf16_full_eval or fp16_full_eval", lambda a: a.bf16_full_eval or a.fp16_full_eval),
)
"""Arguments that change what is trained and are not taken."""

TAKEN = (
    "loss: compute_loss of the Trainer, its label smoothing and compute_loss_func included",
    "left out: callbacks, logging, evaluation, saving, hub, torch_compile, gradient checkpointing",
)


def from_trainer(
    trainer: Any,
    *,
    init_from: str | Path | None = None,
    validation_batches: int = VALIDATION_BATCHES,
    pads: Mapping[str, float] | None = None,
    length: int | None = None,
    spool: str | Path | None = None,
    spool_bytes: int = LARGEST_BYTES,
    name: str = "",
) -> Script:
    """Return what a Trainer of transformers would train, as a task; it is left as it is.

    Taken are its model, training arguments, data, collator, loss, optimizer with its groups,
    schedule, clipping, accumulation and seed; its `bf16` or `fp16` is the baseline. `init_from`
    is a folder checkpoint-N that it wrote: the task goes on from there. The other arguments are as
    of `from_loader`. InputError for what is not taken.
    """
    args, model = trainer.args, trainer.model
    for said, given in REFUSED:
        if given(args):
            raise InputError(f"trainer: {said}; expected it left out: it is not taken")
    if args.n_gpu > 1 or args.world_size > 1:
        raise InputError("trainer: several devices; expected one")
    count = args.gradient_accumulation_steps
    with seeded(args.seed):
        loader = trainer.get_train_dataloader()
        steps = _steps(trainer, loader)
        before = trainer.optimizer, trainer.lr_scheduler
        trainer.create_optimizer_and_scheduler(num_training_steps=steps)
    try:
        optimizer, scheduler = trainer.optimizer, trainer.lr_scheduler
        done = 0
        if init_from is not None:
            restored(init_from, model, optimizer, [scheduler])
            done = steps_done(init_from)
        if done >= steps:
            raise InputError(
                f"init_from: {init_from}: after step {done} of {steps}; expected fewer"
            )
        read = read_optimizer(optimizer, model)
        schedule = recorded(optimizer, [(scheduler, 1)], steps - done)
    finally:
        trainer.optimizer, trainer.lr_scheduler = before
    has_validation = trainer.eval_dataset is not None
    drawing = Drawing(
        *(loader, steps - done, None, count, args.seed),
        trainer.get_eval_dataloader() if has_validation else None,
        validation_batches,
        epoch_ends=True,
        counted=_Counted(trainer) if _counts(trainer) else None,
        pads=pads or _pads(trainer),
        length=length,
    )
    places = Places(name or type(model).__name__, spool, spool_bytes)
    script = script_of(model, drawing, _Step(trainer, count), places, read, taken=TAKEN)
    clip = {"clip_norm": args.max_grad_norm} if args.max_grad_norm else {}
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "no"
    return replace(
        script,
        recipe={**script.recipe, **schedule, **clip},
        baseline=baseline_of(precision),
    )


def _steps(trainer: Any, loader: Any) -> int:
    """Return the steps of the training."""
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    try:
        batches = len(loader)
    except TypeError:
        raise InputError("trainer: data without a length; expected max_steps") from None
    # A last step of fewer micro-batches than the others is left out here.
    each = batches // args.gradient_accumulation_steps
    if not each:
        raise InputError(f"trainer: {batches} batches an epoch; expected those of one step")
    return math.ceil(float(args.num_train_epochs) * each)


def _counts(trainer: Any) -> bool:
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def _pads(trainer: Any) -> dict[str, float]:
    """Return what collators fill short sequences up with, by name."""
    tokenizer = getattr(trainer, "processing_class", None)
    token = getattr(tokenizer, "pad_token_id", None)
    return {"input_ids": token or 0, "attention_mask": 0, "token_type_ids": 0, "labels": -100}


class _Counted:
    """Counts the labels of the batches of a step, as the Trainer does."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self, batches: Sequence[Any]) -> dict[str, Any]:
        count = self._trainer._get_num_items_in_batch(list(batches), torch.device("cpu"))
        if count is None:
            return {}
        rows = len(next(iter(batches[0].values())))
        return {COUNT: torch.full((rows,), float(count))}


class _Step:
    """The Trainer's training step, but for the backward pass.

    Its loss is such that the mean over micro-batches is the sum that the Trainer steps on.
    """

    def __init__(self, trainer: Any, count: int) -> None:
        self._trainer, self._count = trainer, count

    def __call__(self, module: Any, batch: dict[str, Any]) -> Any:
        trainer, items = self._trainer, batch.pop(COUNT, None)
        total = None if items is None else items[0]
        loss = trainer.compute_loss(module, batch, num_items_in_batch=total)
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            scaled = trainer.compute_loss_func is not None or (
                trainer.model_accepts_loss_kwargs and total is not None
            )
        return loss * self._count if scaled and self._count > 1 else loss
