"""Trainings and results that show all that there is to show, for the texts that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from policysearch.diagnose.diagnosis import Diagnosis, Tried
from policysearch.diagnose.evidence import Cause
from policysearch.diagnose.repairs import LeftOut, Repair
from policysearch.formats import format_named
from policysearch.graph import Role
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.study.journal.trials import Confirmation, FailedTrial
from policysearch.study.results.fidelity import FidelitySummary
from policysearch.study.results.learning import Beside, Learned
from policysearch.study.results.results import Results
from policysearch.train.constant import Constant
from policysearch.train.lost_values import Kind, LostValues
from policysearch.train.origin import Link, Origin
from policysearch.train.swamped import Swamped
from tests import test_page
from tests.made_up import diverged, many, policy_of, results_of, trial_of
from tests.studies import share_of

NAN, STEPS = math.nan, (1, 2, 3, 6)


def rich(
    objective: Objective,
    policy: Policy,
    seed: int,
    jitter: float = 0.0,
    steps: int | None = None,
    until: int | None = None,
    *_: object,
) -> Measurement:
    """Return a training with all that a run can show: the narrower a policy, the more of it."""
    if policy.name == "mindspore.O0":
        raise RuntimeError("out of memory")
    whole = steps or objective.task.steps
    end, share, masters = until or whole, share_of(policy), policy.master_weights
    narrow = sum(32 - format_named(layer.compute).bits for _, layer in policy.layers)
    gap = 2e-5 * narrow * (0.5 + share) * (1.0 if masters else whole)
    gap += 1e-6 * (seed + 1) * (1.0 + share) * bool(narrow) + jitter * (1.0 + seed)
    scaled = policy.loss_scale.kind == "dynamic"
    known = Measurement(
        _loss(end) + gap, 0.9 - gap, None, 2 * scaled, (), (), "c",
        tuple((math.ceil(end * x), _loss(end * x) + gap * x) for x in (0.125, 0.25, 0.5, 1.0)),
        scales=((0, 1024.0), (5, 512.0), (9, 1024.0)) * scaled, skips=(3, 5) * scaled,
        first_loss=2.35, validation_gain=(1.9 - gap, 0.01), wall_seconds=0.25 + share,
        losses=tuple((at, _loss(at) + gap) for at in (1, 2, 3, 5, 8, 13, 21, 34) if at <= end),
        validation_loss=0.4 + gap, metric=0.7 - gap if objective.task.metric else None,
    )  # fmt: skip
    return _with_losses(known, policy, seed, end) if narrow else known


def _loss(steps: float) -> float:
    return round(2.3 / (1.0 + 0.2 * steps), 6)


def _with_losses(known: Measurement, policy: Policy, seed: int, end: int) -> Measurement:
    """Add what a narrow policy loses; without masters updates vanish, and apex.O3 diverges."""
    names = [name for name, _ in policy.layers]
    first, last, pure = names[1], names[-1], not policy.master_weights
    rows: tuple[tuple[Kind, str, Role, str], ...] = (
        ("overflow", first, "fprop", "linear"),
        ("underflow", first, "dgrad", "linear"),
        ("underflow", last, "wgrad", ""),
        *((("swamped", last, "update", ""), ("decay", last, "update", "")) * pure),
        *((("state", first, "update", ""),) * pure),
    )
    lost = tuple(
        LostValues(kind, layer, role, 3 * at + seed + 1, 4000, at, 10.0 ** (2 - at), op)
        for at, (kind, layer, role, op) in enumerate(rows)
    )
    shares = ((0, 0.001), (end // 2, 0.02), (end - 1, 0.3 * pure))
    swamped = Swamped(shares, 0.4 * pure, last, 0.5)
    counts = {"overflows": ((first, 3 + seed),), "underflows": ((first, 7), ("", 2))}
    known = replace(known, lost=lost, swamped=swamped, **counts)  # type: ignore[arg-type]
    if policy.name != "apex.O3":
        return known
    links = (
        Link("linear", first, "fprop", "float16", 65504.0, 30.0, 900.0, 0, 512, "net.py:7"),
        Link("scale", last, "dgrad", "float16", 65504.0, 900.0, 70000.0, 12, 512),
    )
    origins = (Origin("overflow", 4, "gradients", False, links),)
    return replace(known, tail_loss=None, diverged_at=4, curve=known.curve[:1], origins=origins)


def states() -> dict[str, Callable[[], Results]]:
    """Return results of every kind that nobody ran, the fullest first."""
    known = {name: make for name, (make, _) in test_page.STATES.items() if name != "300 layers"}
    own = {"told": _told, "narrow": _narrow, "squares": _squares, "deep": _deep, "longer": _longer}
    own |= {"crowded": _crowded}
    return {"failed": known.pop("failed"), **own, **known}


def _told() -> Results:
    """All that a search knows beside its policies: what it expected, left out and could not do."""
    known = results_of()
    told = {0: (1e-12, 1e-13, 1e-11), 2: (2e-5, 1e-5, 4e-5), 4: (1e-3, 5e-4, 2e-3)}
    trials = [replace(t, expected=told.get(t.number), by_hand=t.number == 5) for t in known.trials]
    trials[6] = replace(diverged(trials[6]), start=True)
    hand = replace(trials[7].scores[0], scales=((0, 1024.0),), skipped_steps=3, skips=(1, 2, 3))
    moved = replace(hand, scales=((0, 3.0), (2, 512.0), (4, 1024.0)), skips=())
    trials[7] = replace(trials[7], scores=(hand, moved))
    spec = replace(
        known.spec,
        space=replace(known.spec.space, formats=("float32", "float16", "float6_e3m2fn")),
        cost=replace(known.spec.cost, batch_size=None, batch_size_reason=""),
    )
    labels = Constant(2.3, 2.3, 0.1, 360)
    return replace(
        known,
        spec=spec,
        trials=tuple(trials),
        learned=Learned(2.3, 0.3, Beside(labels, (0.9, 0.91), ((1.9, 0.01), (1.8, 0.02)))),
        fidelity=FidelitySummary(12, 30, 2, 5, 18.5, 8, 0.91, NAN, True, True),
        left=known.references,
        mixed=("optuna 4.0.0 and 5.0.0",),
        unconfirmed=((trials[5].digest, "out of memory"),),
    )


def _narrow() -> Results:
    """A search that began with narrower nets and with fewer seeds, and has not ended."""
    known = results_of(6)
    study = replace(known.spec.study, search_seeds=1)
    summary = FidelitySummary(3, 9, 6, 0, 5.2, 2, NAN, NAN, False, True, 0.25, "narrow runs")
    trials = [replace(t, scores=t.scores[:1], seeds=(0,)) for t in known.trials[3:]]
    return replace(
        known,
        spec=replace(known.spec, study=study),
        trials=(*known.trials[:3], *trials),
        fidelity=summary,
        left=known.references[:1],
        noise_gap=None,
        stopped="",
        confirmed=(),
    )


def _squares() -> Results:
    """A loss that is no likelihood, negative gaps, and no labels that are classes."""
    known = results_of(6)
    trials = tuple(
        replace(
            trial,
            scores=tuple(
                replace(s, loss_unit="MSE", validation_accuracy=None, loss_gap=sign * s.loss_gap)
                for s in trial.scores
            ),
        )
        for trial, sign in zip(known.trials, (1, -1, 1, -1, 1, -1), strict=True)
    )
    summary = FidelitySummary(3, 9, 6, 0, 5.2, 2, 0.4, 0.1, False, False)
    learned = Learned(2.3, 0.3, Beside(Constant(2.3, None, None, 360), (), ((-0.1, 0.2),)), "MSE")
    cost = replace(known.spec.cost, batch_size=16)
    spec = replace(known.spec, cost=cost)
    return replace(known, spec=spec, trials=trials, fidelity=summary, learned=learned, confirmed=())


def _deep() -> Results:
    """Many policies of a net of many layers, one seed each."""
    return many(30, 40)


def _crowded() -> Results:
    """A front whose members lie close together in a plot, and whose gaps grow along the run."""
    known = results_of(2)
    layers = [name for name, _ in known.trials[0].policy.layers]
    trials = list(known.trials)
    for number in range(2, 16):
        bend = 1 + number // 9
        speed, gap = 1.3 * 1.12**number, 1e-3 * 1.02**number
        if number == 15:
            speed, gap = 400.0, 30.0
        trial = trial_of(number, policy_of(number, layers), (gap, 1.01 * gap))
        cost = replace(trial.cost, speedup=speed, speedup_low=speed, speedup_high=speed)
        scores = tuple(
            replace(
                score,
                cost=replace(cost, memory_ratio=1.0 / speed),
                lost=(),
                overflows=(("fc1", 3),) * (number % 2),
                gap_curve=tuple((s, gap * (s / 6) ** bend + 1e-4 * seed, 1.0 / s) for s in STEPS),
            )
            for seed, score in enumerate(trial.scores)
        )
        trials.append(replace(trial, scores=scores))
    return replace(known, trials=tuple(trials), confirmed=(), references=known.references[:1])


def _longer() -> Results:
    """Policies that were trained longer: holding, growing, diverging, over two horizons."""
    known = results_of(6)
    rows = ((1e-5, 1e-6, False), (2e-2, 1e-3, False), (0.0, None, True), (5e-3, 1e-4, False))
    confirmed = tuple(
        (
            trial.digest,
            Confirmation(
                60, (9, 10), gap, spread, 0.3, lost, (((8, 1e-6, 1.0), (60, gap, 0.3)),) * 2
            ),
        )
        for trial, (gap, spread, lost) in zip(known.trials[1:], rows, strict=False)
    )
    horizons = tuple((d, (replace(c, steps=30), c)) for d, c in confirmed[:2])
    failed = (FailedTrial(9, known.trials[2].text, ("mindspore.O0",), "out of memory"),)
    return replace(known, confirmed=confirmed, horizons=horizons, failed=failed)


def diagnoses() -> dict[str, tuple[Diagnosis, Policy]]:
    """Return diagnoses of every verdict, each with the policy that it is of."""
    layers = ("fc1", "fc2")
    policy = preset("apex.O3", layers)
    wide = preset("float32", layers)
    first, *low = policy.low_precision_ops
    listed = replace(policy, low_precision_ops=tuple(low), fp32_ops=(first,))
    parts = replace(listed, layers=(policy.layers[0], wide.layers[1]))
    cause = Cause("overflow", "scale", "fc2", "dgrad", 4, 7e4, 65504.0, "a gradient grew", (), "")
    tried = tuple(
        Tried(Repair(what, changed, apart=apart), error, 0.5, 1.1, 0.9, gaps)
        for what, changed, apart, error, gaps in (
            ("fc2 in float32", parts, False, 0.01, (1e-4, 3e-4)),
            ("masters", replace(policy, master_weights=True), False, 0.02, (math.inf,)),
            ("gradients", policy, False, 0.03, (2e-3,)),
            ("all in float32", wide, True, math.inf, ()),
        )
    )
    none = Diagnosis("none", Cause("none"), 1e-4, 0.1, 1e-5)
    failing = replace(none, verdict="repaired", cause=cause, gap=0.5, tried=tried, trained=2)
    left = (LeftOut("fc1 in float32", "the target has one format"),)
    was = replace(policy, master_weights=True)
    own = replace(cause, line="net.py:7", step=0)
    return {
        "none": (none, policy),
        "one": (replace(failing, repair=tried[0].repair, trained=1, cause=own), policy),
        "several": (replace(failing, repair=tried[1].repair, gap=math.inf), policy),
        "as run": (replace(failing, repair=replace(tried[0].repair, was=was)), policy),
        "not": (replace(failing, verdict="not repaired", why="no change", left_out=left), policy),
    }
