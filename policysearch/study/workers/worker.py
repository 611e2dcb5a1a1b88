"""What a worker of a cluster does: says what it trains with, and trains."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from policysearch.cost.devices import DEVICES
from policysearch.cost.stacks import STACKS
from policysearch.objective.objective import Objective
from policysearch.objective.score import Outcome
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.study.journal.identity import code_fingerprints, libraries
from policysearch.study.workers.executors import Job, attempted, unlike
from policysearch.train.tasks import Task
from policysearch.values import InputError


@dataclass(frozen=True)
class Payload:
    """What a worker trains with: the task with its data, and what emulates.

    `model` is the fingerprint that the task's model must have there.
    """

    task: Task
    model: str
    fast: Fast | None

    @cached_property
    def objective(self) -> Objective:
        """Made once on each worker, which prices nothing: any device will do."""
        return Objective(self.task, next(iter(DEVICES)), next(iter(STACKS)), fast=self.fast)

    @cached_property
    def key(self) -> str:
        """The name of this content: equal for equal tasks, models and data."""
        data = self.task.load_dataset().fingerprint
        plain = [self.task.to_plain(), data, self.model, self.fast]
        return "policysearch-" + hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:32]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("task", "model", "fast")}


def said_identity() -> dict[str, Any]:
    """Return what this process trains with: the package's code, numpy and its BLAS."""
    return {"code": code_fingerprints(), "libraries": libraries()}


def prepared(payload: Payload) -> str:
    """Keep what this worker trains with; return why it cannot be trained here, "" where it can."""
    try:
        check_fast(payload.fast)
    except InputError as error:  # a device that this worker does not have
        return str(error)
    why = unlike(payload.objective, payload.model)
    if not why:
        _kept()[payload.key] = payload
    return why


def measured(key: str, job: Job) -> tuple[Outcome, bool]:
    """Return how the run ended here, and whether another attempt may end otherwise.

    `key` is that of a payload that was `prepared` here.
    """
    return attempted(_kept()[key].objective, job)


def _kept() -> dict[str, Payload]:
    """Return the payloads of this worker by key; they live as long as its process."""
    from distributed import get_worker

    payloads: dict[str, Payload] = vars(get_worker()).setdefault("policysearch", {})
    return payloads
