"""Results of studies that nobody ran: any number of policies, layers and seeds, any names."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace

from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP, Score
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.study.journal.records import compact
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, spec_from_text
from policysearch.train.lost_values import LostValues
from policysearch.train.swamped import Swamped
from tests.studies import TINY

FORMATS = ("float16", "bfloat16", "float32", "float8_e4m3fn")


@functools.cache
def tiny() -> tuple[StudySpec, Score]:
    """Return a small study and the score of float32 in it."""
    spec = spec_from_text(TINY.replace("trials = 6", 'trials = 6\nbaseline = "bfloat16"'), "tiny")
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    cost = objective.price(objective.float32)
    losses = tuple((step, 2.0 / step) for step in (1, 2, 3, 6))
    curve = ((1, 0.0, 2.0), (2, 0.0, 1.0), (3, 0.0, 0.7), (6, 0.0, 0.35))
    runs = {"losses": losses, "float32_losses": losses, "gap_curve": curve}
    return spec, Score(0.0, 0.9, False, (), (), 0, cost, **runs)  # type: ignore[arg-type]


def policy_of(number: int, layers: Sequence[str], name: str | None = None) -> Policy:
    """Return a policy that differs by number: a format per layer, with masters where even."""
    rows = {
        layer: uniform_layer(
            FORMATS[(number + place // 2) % 4], param="float32" if number % 2 else "bfloat16"
        )
        for place, layer in enumerate(layers)
    }
    base = preset("bfloat16", tuple(layers))
    changed = base.with_layers(rows, name or f"policy {number}")
    return replace(changed, master_weights=bool(number % 2))


def trial_of(
    number: int, policy: Policy, gaps: Sequence[float] = (1e-4, 2e-4), presets: tuple[str, ...] = ()
) -> Trial:
    """Return a trial with these gaps: the larger, the faster."""
    _, blank = tiny()
    speed = 1.0 if "float32" in presets else 1.2 + 0.07 * (number % 17)
    layers = [name for name, _ in policy.layers]
    shares = tuple((name, 1.0 / len(layers)) for name in layers)
    parts = tuple(
        (name, role, 0.25 / len(layers))
        for name in layers
        for role in ("fprop", "dgrad", "wgrad", "cast")
    )
    cost = replace(
        blank.cost,
        speedup=speed,
        speedup_low=0.9 * speed,
        speedup_high=1.2 * speed,
        memory_ratio=1.0 / speed,
        step_seconds=blank.cost.float32_step_seconds / speed,
        layer_shares=shares,
        parts=parts,
    )
    lost = (LostValues("underflow", layers[0], "dgrad", 5, 1000, 0, 1e-8),)
    swamped = Swamped(((0, 0.0), (5, 0.02)), 0.02, layers[-1], 0.03)
    scores = tuple(
        replace(blank, loss_gap=gap, cost=cost, lost=lost, swamped=swamped) for gap in gaps
    )
    digest = f"{number:04x}{policy.digest[4:]}"
    return Trial(
        number, digest, compact(policy), presets, scores, "", seeds=tuple(range(len(gaps)))
    )


def diverged(trial: Trial) -> Trial:
    """Return the trial with every run lost."""
    scores = tuple(replace(s, diverged=True, loss_gap=DIVERGED_GAP) for s in trial.scores)
    return replace(trial, scores=scores, divergence="diverged in step 3 (seed 0)")


def results_of(
    policies: int = 8,
    layers: Sequence[str] = ("fc1", "tanh1", "fc2"),
    seeds: int = 2,
    names: Sequence[str] | None = None,
) -> Results:
    """Return float32, a baseline and more: so many policies, of which the third fails later."""
    spec, blank = tiny()
    trials = [
        trial_of(0, preset("float32", tuple(layers)), (0.0,) * seeds, ("float32",)),
        trial_of(1, preset("bfloat16", tuple(layers)), (1e-5,) * seeds, ("bfloat16",)),
    ]
    for number in range(2, policies):
        name = names[number % len(names)] if names else None
        gaps = [1e-5 * number * (1 + 0.1 * seed) for seed in range(seeds)]
        trials.append(trial_of(number, policy_of(number, layers, name), gaps))
    confirmed = [
        (t.digest, Confirmation(60, (9,), 1e-4 if t.number != 3 else 0.2, None, 0.3, False))
        for t in trials[1:5]
    ]
    base = replace(blank.cost, step_seconds=blank.cost.step_seconds)
    references = (("float32", base), ("bfloat16", trials[1].cost))
    return Results(
        spec,
        tuple(trials),
        1e-8,
        confirmed=tuple(confirmed),
        references=references,
        stopped="budget: 6 trials",
    )


def many(policies: int, layers: int, seeds: int = 1) -> Results:
    """Return results of many policies of a deep net; texts are shared, names are in them."""
    names = [f"blocks.{i // 4}.{('attn', 'norm', 'mlp', 'act')[i % 4]}" for i in range(layers)]
    spec, blank = tiny()
    texts = [compact(policy_of(number, names)) for number in range(8)]
    first = trial_of(0, preset("float32", tuple(names)), (0.0,) * seeds, ("float32",))
    cost = trial_of(1, policy_of(1, names)).cost
    trials = [first]
    for number in range(1, policies):
        speed = 1.0 + 0.9 * ((number * 7919) % 1000) / 1000
        own = replace(
            cost,
            speedup=speed,
            speedup_low=0.9 * speed,
            speedup_high=1.2 * speed,
            memory_ratio=0.5 + 0.4 * ((number * 104729) % 1000) / 1000,
            step_seconds=blank.cost.float32_step_seconds / speed,
        )
        gaps = [1e-6 * 1.001 ** (number * 31 % 9000) * (1 + 0.1 * seed) for seed in (0, 1)]
        scores = tuple(replace(blank, loss_gap=gap, cost=own) for gap in gaps[:seeds])
        plain = json.loads(texts[number % 8])["name"]
        text = texts[number % 8].replace(f'"{plain}"', f'"policy {number}"', 1)
        trials.append(
            Trial(number, f"{number:064x}", text, (), scores, "", seeds=tuple(range(seeds)))
        )
    references = (("float32", blank.cost), ("bfloat16", trials[1].cost))
    return Results(spec, tuple(trials), 1e-8, references=references, stopped="budget")
