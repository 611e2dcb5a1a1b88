"""What is handed to the process that trains in the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from policysearch.policy.policy import Policy
from policysearch.train.tasks import Task

JOB, FILE, RESULT = "job.pickle", "exported.py", "result.json"
"""Names in the folder that the two processes share: the job, the exported file, what came of it."""


@dataclass(frozen=True)
class Job:
    """What is trained: the task over its steps, on the batches and values of the seed.

    `source` is the user's module or its maker, None for a model that is built in or in a file.
    `place` is the device, as torch calls it.
    """

    task: Task
    policy: Policy
    seed: int
    source: Any = None
    place: str = "cpu"
