"""Whether a file that somebody ships is what is exported now: judged by what it does, in torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from policysearch.export.targets import read_file
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.tasks import Task
from policysearch.verify.jittered_runs import Tell, silent
from policysearch.verify.verdict import Verdict, trained_in_torch, verify


def claimed_digest(text: str) -> str:
    """Return the digest in the head of an exported file, "" where there is none."""
    found = re.search(r"^# ([0-9a-f]{64})$", text, re.MULTILINE)
    return found[1] if found else ""


def policy_in_file(
    text: str, model: Model, known: Iterable[Policy], where: str, target: str = "torch"
) -> tuple[Policy, bool]:
    """Return the policy that a file says it is of, and whether it is one of those `known`.

    Of a file of another policy it is what its own tables say. Raises InputError where it has none.
    """
    digest = claimed_digest(text)
    for policy in known:
        if policy.digest == digest:
            return policy, True
    return read_file(target, text, model, where).policy, False


def verify_file(
    text: str,
    policy: Policy,
    task: Task,
    *,
    steps: int = 50,
    seed: int = 0,
    place: str = "cpu",
    progress: Tell = silent,
) -> Verdict:
    """Train with the very file, beside the emulator and beside what is exported now of the policy.

    `Verdict.edits` says where the last two part: both run the same batches on the same machine, so
    a call in another dtype, another loss and another move of the loss scale are the file's doing.
    """
    verdict = verify(
        policy, task, steps=steps, seed=seed, place=place, text=text, progress=progress
    )
    task = task.with_steps(steps)
    model = task.build_model(task.load_dataset())
    progress("torch, exported now")
    fresh = trained_in_torch(policy, task, model, seed, place)
    there = {
        "calls": verdict.calls,
        "events": verdict.events,
        "steps": tuple(zip(verdict.losses, verdict.scales, verdict.skipped, strict=True)),
    }
    return replace(verdict, edits=tuple(edits(there, fresh)))


WORDS: Mapping[str, str] = {
    "calls": "call {} of the first step",
    "events": "loss scale, forced step {}",
    "steps": "step {} (loss, scale, skipped)",
}
"""What is compared of two trainings, by its key in the result of a training."""


def edits(there: Mapping[str, Any], fresh: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first difference of each kind between two results, one line each."""
    for key, words in WORDS.items():
        for number, (given, expected) in enumerate(zip_longest(there[key], fresh[key])):
            if _plain(given) != _plain(expected):
                said = words.format(number)
                yield f"the file, {said}: {_shown(given)}; expected {_shown(expected)}"
                break


def _plain(value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return value
    return [repr(float(each)) for each in value]  # NaN is NaN


def _shown(value: Any) -> str:
    if value is None:
        return "nothing more"
    return value if isinstance(value, str) else _number_list(value)


def _number_list(values: Sequence[Any]) -> str:
    return ", ".join(f"{float(value):.9g}" for value in values)
