"""An unmodified Trainer of Hugging Face as a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from policysearch.train.scripts.batches import seeded
from policysearch.train.scripts.checkpoints import steps_left
from policysearch.train.scripts.loader import Kept, baseline_of, script_of
from policysearch.train.scripts.recipe import Read, loss_scale_of, read_optimizer, recorded
from policysearch.train.scripts.script import Script
from policysearch.values import USER_FAULTS, InputError

COUNT = "num_items_in_batch"
"""What the labels of all micro-batches of a step are called where the loss is divided by them."""

REFUSED: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("several devices", lambda args: args.n_gpu > 1 or args.world_size > 1),
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


def from_trainer(trainer: Any, *, init_from: str | Path | None = None, **kept: Any) -> Script:
    """Return what a Trainer of transformers would train, as a task; it is left as it is.

    Taken are its model, training arguments, data, collator, loss, optimizer with its groups,
    schedule, clipping, accumulation and seed; its `bf16` or `fp16` is the baseline. `init_from`
    is a folder checkpoint-N that it wrote: the task goes on from there, with batches from the
    beginning. `kept` are fields of `Kept`. InputError for what is not taken.
    """
    args, model, count = trainer.args, trainer.model, trainer.args.gradient_accumulation_steps
    for said, given in REFUSED:
        if given(args):
            raise InputError(f"trainer: {said}; expected it left out: it is not taken")
    with seeded(args.seed):
        loader = _loader(trainer)
        total = _steps(trainer, loader)
        read, schedule, steps = _recipe(trainer, total, init_from)
    how = Kept(**{"validation": _validation(trainer), "pads": _pads(trainer), **kept})
    drawing = how.drawing(
        loader,
        args.seed,
        steps=steps,
        accumulation_steps=count,
        epoch_ends=True,
        counted=_Counted(trainer) if _counts(trainer) else None,
    )
    script = script_of(model, drawing, _Step(trainer, count), how, read, taken=TAKEN)
    clip = {"clip_norm": args.max_grad_norm} if args.max_grad_norm else {}
    precision = "bf16" if args.bf16 else "fp16" if args.fp16 else "no"
    recipe = {**script.recipe, **schedule, **clip}
    scaler = getattr(getattr(trainer, "accelerator", None), "scaler", None)
    return script.taking(recipe, baseline_of(precision), loss_scale_of(scaler))


def _recipe(
    trainer: Any, steps: int, init_from: str | Path | None
) -> tuple[Read, dict[str, Any], int]:
    """Return the optimizer, the schedule and the steps that are left; the trainer keeps none."""
    before = trainer.optimizer, trainer.lr_scheduler
    trainer.create_optimizer_and_scheduler(num_training_steps=steps)
    optimizer, scheduler = trainer.optimizer, trainer.lr_scheduler
    trainer.optimizer, trainer.lr_scheduler = before
    left = steps_left(init_from, trainer.model, optimizer, [scheduler], steps)
    schedule = recorded(optimizer, [(scheduler, 1)], left)
    return read_optimizer(optimizer, trainer.model), schedule, left


def _loader(trainer: Any) -> Any:
    try:
        return trainer.get_train_dataloader()
    except USER_FAULTS as error:  # as of a data set without examples
        reason = " ".join(str(error).split())
        raise InputError(f"trainer: {reason}; expected train_dataset to give batches") from error


def _validation(trainer: Any) -> Any:
    return None if trainer.eval_dataset is None else trainer.get_eval_dataloader()


def _steps(trainer: Any, loader: Any) -> int:
    """Return the steps of the training."""
    args = trainer.args
    if args.max_steps > 0:
        most: int = args.max_steps
        return most
    try:
        batches: int = len(loader)
    except TypeError:
        raise InputError("trainer: data without a length; expected max_steps") from None
    # A last step of fewer micro-batches than the others is left out here.
    each: int = batches // args.gradient_accumulation_steps
    if not each:
        raise InputError(f"trainer: {batches} batches an epoch; expected those of one step")
    epochs: float = args.num_train_epochs
    return math.ceil(epochs * each)


def _counts(trainer: Any) -> bool:
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)


def _pads(trainer: Any) -> dict[str, float]:
    """Return what collators fill short sequences up with, by name."""
    tokenizer = getattr(trainer, "processing_class", None)
    token = getattr(tokenizer, "pad_token_id", None)
    tokens = dict.fromkeys(("input_ids", "decoder_input_ids"), float(token or 0))
    masks = dict.fromkeys(("attention_mask", "decoder_attention_mask", "token_type_ids"), 0.0)
    return {**tokens, **masks, "labels": -100}


def _count(trainer: Any, batches: Sequence[Any]) -> Any:
    """Return the labels of some batches, a tensor; None where the Trainer counts none."""
    return trainer._get_num_items_in_batch(list(batches), torch.device("cpu"))


class _Counted:
    """Counts the labels of the batches of a step, as the Trainer does."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __call__(self, batches: Sequence[Any]) -> dict[str, Any]:
        count = _count(self._trainer, batches)
        if count is None:
            return {}
        rows = len(next(iter(batches[0].values())))
        return {COUNT: torch.full((rows,), float(count))}


class _Step:
    """The Trainer's training step, but for the backward pass.

    Its loss is such that the mean over micro-batches is the sum that the Trainer steps on. That of
    evaluation is of one batch, which its own labels are counted in.
    """

    def __init__(self, trainer: Any, count: int) -> None:
        self._trainer, self._count = trainer, count
        self.evaluates_otherwise = count > 1 or _counts(trainer)

    def __call__(self, module: Any, batch: dict[str, Any]) -> Any:
        trainer, items = self._trainer, batch.pop(COUNT, None)
        if not module.training:
            total = None if items is None else _count(trainer, [batch])
            return trainer.compute_loss(module, batch, num_items_in_batch=total)
        total = None if items is None else items[0]
        loss = trainer.compute_loss(module, batch, num_items_in_batch=total)
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            scaled = trainer.compute_loss_func is not None or (
                trainer.model_accepts_loss_kwargs and total is not None
            )
        return loss * self._count if scaled and self._count > 1 else loss
