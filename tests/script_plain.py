"""Training loops as a user writes them, plain and with Accelerate: groups, clipping, warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from tests.script_rows import Rows

STEPS, ACCUMULATED = 20, 4


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, 3))


def loader() -> Any:
    return torch.utils.data.DataLoader(Rows(), batch_size=4, shuffle=True)


def loss_of(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch["x"]), batch["label"])


def optimizer_of(model: Any) -> Any:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 0.01}]
    return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)


def scheduler_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 5, (STEPS - step) / (STEPS - 5))
    )


def endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def plain(model: Any, batches: Any) -> list[float]:
    """Train; return the loss of every step."""
    optimizer = optimizer_of(model)
    scheduler, losses = scheduler_of(optimizer), []
    stream = endless(batches)
    for _ in range(STEPS):
        total = 0.0
        for _ in range(ACCUMULATED):
            loss = loss_of(model, next(stream))
            (loss / ACCUMULATED).backward()
            total += float(loss.detach()) / ACCUMULATED
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def scaled(model: Any, batches: Any, scaler: Any) -> tuple[list[float], list[float]]:
    """Train with a GradScaler; return the loss of every step, and the scale that it had."""
    optimizer = optimizer_of(model)
    scheduler, losses, scales = scheduler_of(optimizer), list[float](), list[float]()
    stream = endless(batches)
    for _ in range(STEPS):
        total = 0.0
        scales.append(scaler.get_scale())
        for _ in range(ACCUMULATED):
            loss = loss_of(model, next(stream))
            scaler.scale(loss / ACCUMULATED).backward()
            total += float(loss.detach()) / ACCUMULATED
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, scales


def accelerated(model: Any, batches: Any) -> list[float]:
    """Train with Accelerate; return the loss of every step."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATED, cpu=True)
    optimizer = optimizer_of(model)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    scheduler, losses, total = scheduler_of(optimizer.optimizer), list[float](), 0.0
    stream = endless(batches)
    while len(losses) < STEPS:
        batch = next(stream)
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            total += float(loss.detach()) / ACCUMULATED
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                scheduler.step()
                losses.append(total)
                total = 0.0
    return losses
