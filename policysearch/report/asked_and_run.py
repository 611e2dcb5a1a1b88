"""A policy beside what a target makes of it, and what a trainer's own file gives each module."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from policysearch.export.reading import Reading, grouped, in_words, narrower, said
from policysearch.export.targets import targets
from policysearch.formats import format_named
from policysearch.policy.policy import Policy
from policysearch.report.text import aligned
from policysearch.space.target import run_and_different
from policysearch.study.opening import load_results
from policysearch.study.specification import StudySpec, objective_of
from policysearch.values import NO_LAYER


def asked_and_run(policy: Policy, study: StudySpec, target: str, storage: Path | None) -> str:
    """Return both in columns: the gap where a training is known, modeled price, what differs.

    `storage` is the journal of the study, None for a study that has none. Nothing is trained.
    """
    model = study.task.build_model(study.task.load_dataset())
    running, lines = run_and_different(policy, model, target)
    objective, gaps = objective_of(study), _trained_gaps(study, storage)
    asked, run = (objective.price(each) for each in (policy, running))
    rows = [
        ("", "asked", f"as {target} runs it"),
        ("loss gap", *(gaps.get(p.digest, "not trained") for p in (policy, running))),
        ("modeled speedup over float32", f"{asked.speedup:.3f}", f"{run.speedup:.3f}"),
        ("modeled memory of float32's", f"{asked.memory_ratio:.3f}", f"{run.memory_ratio:.3f}"),
        *((name, *pair) for name, pair in _formats(policy, running)),
    ]
    blocks = [[f"lost: {line}" for line in _lost(policy, running, target)], aligned(rows)]
    blocks.append([f"{target} does otherwise: {line}" for line in grouped(lines)])
    narrow = grouped([*narrower(policy, running)])
    blocks.append([f"narrower than asked: {line}" for line in narrow])
    if not lines:
        blocks.append([f"{target} runs it as it is"])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _trained_gaps(study: StudySpec, storage: Path | None) -> dict[str, str]:
    """Return the loss gap of each policy that the study has trained, by digest."""
    if storage is None or not storage.exists():
        return {}
    trials = load_results(study, storage).trials
    return {
        trial.policy.digest: "diverged" if trial.diverged else f"{trial.loss_gap:+.2e}"
        for trial in trials
    }


def _formats(policy: Policy, running: Policy) -> list[tuple[str, tuple[str, str]]]:
    """Return how many layers have which formats, in both."""
    counts = [Counter(said(formats) for _, formats in p.layers) for p in (policy, running)]
    return [
        (f"layers in {name}", (str(counts[0][name]), str(counts[1][name])))
        for name in dict.fromkeys([*counts[0], *counts[1]])
    ]


def _lost(policy: Policy, running: Policy, target: str) -> list[str]:
    """Return a line for each format below 32 bits that is asked and nowhere left."""
    asked, run = ({row.compute: None for _, row in p.layers} for p in (policy, running))
    gone = [name for name in asked if name not in run and format_named(name).bits < 32]
    left = ", ".join(run)
    return [f"{target} runs no layer of this net in {name}; all are in {left}" for name in gone]


def given_page(reading: Reading, target: str, study: StudySpec | None) -> str:
    """Return what a file gives each module, the rule that decided, unused rules, traps, price."""
    rows = [("layer", f"module of {target}", "gets", "by")]
    rows += [(x.layer or NO_LAYER, x.module, said(x.formats), x.rule) for x in reading.given]
    blocks = [aligned(rows)]
    blocks.append([f"rule {line}" for line in reading.unused])
    blocks.append([f"trap: {line}" for line in reading.traps])
    blocks.append([f"not read: {line}" for line in reading.unread])
    if reading.policy.loss_scale.kind != "none":
        blocks.append([f"in all: {in_words(reading.policy)}"])
    if study is not None:
        cost = objective_of(study).price(reading.policy)
        place = f"{study.cost.device}, {study.cost.stack}"
        blocks.append(
            [
                f"modeled on {place}: {cost.speedup:.3f} times as fast as float32, "
                f"{cost.memory_ratio:.3f} of its memory"
            ]
        )
    return "\n\n".join("\n".join(block) for block in blocks if block)


def targets_page() -> str:
    """Return every target: its file, what it can say per layer, how and when it was looked at."""
    rows = [("target", "its file", "what it can say", "looked at", "checked here by")]
    for name, row in targets().items():
        about = row.ABOUT
        rows.append((name, about.file, about.says, about.checked, about.how))
    return "\n".join(aligned(rows))
