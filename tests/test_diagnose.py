"""Diagnoses of policies that fail for a known reason, and of those that do not fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.data.datasets import Dataset
from policysearch.diagnose.diagnosis import Diagnoser, Diagnosis, Tried, runs
from policysearch.diagnose.evidence import Cause, Evidence, Kind
from policysearch.diagnose.repairs import Repair, low_work, with_layers_in, with_ops_wide
from policysearch.diagnose.shadow import NodeError, ShadowError, Shadows
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, from_json
from policysearch.policy.presets import preset
from policysearch.report.diagnosis_page import diagnosis_page
from policysearch.space.target import differences
from policysearch.train.lost_values import LostValues
from policysearch.train.origin import Link, Origin
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.verify.verdict import verify
from tests.studies import write_study

TASK = Task(
    model="mlp",
    widths=(32,),
    data="digits",
    activation="tanh",
    optimizer="adam",
    learning_rate=3e-3,
    batch_size=32,
    steps=60,
    tail_steps=10,
)


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.eager")


@pytest.fixture(scope="module")
def diagnoser(objective: Objective) -> Diagnoser:
    return Diagnoser(objective, (0, 1, 2))


def low(objective: Objective, **changes: object) -> Policy:
    plain = preset("apex.O3", objective.model.layer_names)
    masters = replace(
        plain, master_weights=True, optimizer_state="float32", optimizer_order="fused"
    )
    return replace(masters, **changes)  # type: ignore[arg-type]


STATE = {"optimizer_state": "float16", "optimizer_order": "eager", "optimizer_scalars": "storage"}


@pytest.fixture(scope="module")
def state(objective: Objective) -> tuple[Policy, Diagnosis]:
    """A diagnosis for DeepSpeed, which runs the policy otherwise: all is tried as it stands."""
    policy = low(objective, master_weights=False, **STATE)
    return policy, Diagnoser(objective, (0, 1, 2), target="deepspeed").diagnose(policy)


def test_adams_epsilon_in_float16_is_repaired_by_its_state(
    state: tuple[Policy, Diagnosis],
) -> None:
    policy, found = state
    assert found.verdict == "repaired" and found.cause.kind == "state" and found.trained == 1
    assert found.cause.role == "update" and "adam" in found.cause.op and found.cause.step == 0
    assert found.repair is not None and found.repair.policy.optimizer_state == "float32"
    assert len(found.held) == 3 and max(found.held) <= found.matters
    page = diagnosis_page(found, policy)
    assert all(page.count(f"\n{title}: ") == 1 for title in ("error left", "low work left"))
    assert page.startswith("verdict: repaired by optimizer state in float32")
    assert "  optimizer_state: float32" in page and "bfloat16 everywhere" in page
    assert not found.left_out and "left out" not in page


@pytest.mark.torch
def test_what_torch_cannot_keep_is_left_out_and_the_repair_passes_verify(
    diagnoser: Diagnoser, objective: Objective, state: tuple[Policy, Diagnosis]
) -> None:
    """Beside float16 parameters torch keeps Adam's state in float16, whatever the policy says."""
    pytest.importorskip("torch")
    policy, elsewhere = state
    found = diagnoser.diagnose(policy)
    assert found.verdict == "repaired" and found.cause == elsewhere.cause
    first = found.left_out[0]
    assert first.what == "optimizer state in float32" and "torch keeps float16" in first.why
    assert elsewhere.repair is not None and elsewhere.repair.what == first.what
    assert f"left out, for the target undoes it: {first.what} (" in diagnosis_page(found, policy)
    assert found.repair is not None and found.repair.policy.master_weights
    for repair, passes in ((found.repair, True), (elsewhere.repair, False)):
        assert (not differences(repair.policy, objective.model, "torch")) is passes
        trained = verify(repair.policy, TASK, steps=20)
        assert trained.faults == ()
        assert np.isfinite(trained.losses).all() == passes


def test_a_scale_that_overflows_is_lowered_and_nothing_widened(
    diagnoser: Diagnoser, objective: Objective
) -> None:
    scale = LossScale("fixed", 2.0**22, rule="mindspore.FixedLossScaleManager")
    found = diagnoser.diagnose(low(objective, loss_scale=scale))
    assert found.cause.kind in ("loss scale", "never leaves skipping")
    assert found.cause.role in ("dgrad", "wgrad") and found.cause.chain
    assert found.cause.value > found.cause.limit == 65504.0
    assert found.repair is not None and found.repair.policy.layers == low(objective).layers
    assert not any("loss scale" in row.what for row in found.left_out)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "apex.O2", "te.current"])
def test_what_trains_is_left_alone(name: str, diagnoser: Diagnoser, objective: Objective) -> None:
    found = diagnoser.diagnose(preset(name, objective.model.layer_names))
    assert (found.verdict, found.cause.kind, found.tried) == ("none", "none", ())


def test_where_chance_decides_nothing_is_claimed(digits: Dataset) -> None:
    """At this rate float32 itself ends elsewhere for any jitter of its initial values."""
    wild = replace(TASK, optimizer="momentum", learning_rate=3.0, activation="relu")
    objective = Objective(wild, "H100-SXM5", "torch.eager")
    found = Diagnoser(objective, (0,)).diagnose(preset("bfloat16", objective.model.layer_names))
    assert found.verdict in ("undecided", "none") and found.repair is None


class Scripted(Objective):
    """An objective whose runs with jittered initial values are what a test says."""

    says: Callable[[Policy, Measurement], Measurement]

    def measure(self, policy: Policy, seed: int, jitter: float = 0.0, *other: Any) -> Measurement:
        if not jitter:
            return super().measure(policy, seed, 0.0, *other)
        return self.says(policy, self.baseline(seed))


def scripted(says: Callable[[Policy, Measurement], Measurement]) -> tuple[Policy, Diagnosis]:
    objective = Scripted(TASK, "H100-SXM5", "torch.eager")
    objective.says = says
    policy = low(objective, master_weights=False, **STATE)
    return policy, Diagnoser(objective, (0,)).diagnose(policy)


def test_a_policy_that_trains_when_jittered_is_repaired_by_no_change() -> None:
    _, found = scripted(lambda policy, base: base)
    assert found.gap == np.inf and found.cause.kind == "state"
    assert (found.verdict, found.repair, found.tried) == ("undecided", None, ())
    assert found.why.startswith("the recipe is chaotic: the policy itself trains")


def test_a_repair_that_jitter_undoes_does_not_count() -> None:
    def says(policy: Policy, base: Measurement) -> Measurement:
        is_float32 = all(layer.compute == "float32" for _, layer in policy.layers)
        return base if is_float32 else replace(base, tail_loss=None, diverged_at=3)

    _, found = scripted(says)
    assert found.verdict == "not repaired" and found.repair is None
    trained = [row.gaps for row in found.tried if row.gaps]
    assert trained and min(map(max, trained)) <= found.matters  # it trains, but by chance


def test_noise_beyond_what_float32_learns_leaves_a_divergence_undecided() -> None:
    """A net that learned nothing would pass for repaired."""

    def moved(policy: Policy, base: Measurement) -> Measurement:
        assert base.tail_loss is not None and base.first_loss is not None
        is_float32 = all(layer.compute == "float32" for _, layer in policy.layers)
        lost = replace(base, tail_loss=None, diverged_at=3)
        return replace(base, tail_loss=base.first_loss) if is_float32 else lost

    _, found = scripted(moved)
    assert found.gap == np.inf and found.noise > 0.5
    assert (found.verdict, found.repair, found.tried) == ("undecided", None, ())
    assert found.why.startswith("the recipe is chaotic: jitter alone moves float32")


def test_shadows_are_exact_for_float32_and_grow_with_coarser_formats(objective: Objective) -> None:
    shadows = Shadows(objective, 0)
    names = objective.model.layer_names
    assert [moment.step for moment in shadows.moments] == [0, 30, 59]
    errors = [shadows.error(preset(n, names)).gradient for n in ("float32", "float16", "bfloat16")]
    assert errors[0] == 0.0 < errors[1] < errors[2] < 0.1
    assert not shadows.grown(preset("float32", names))
    assert shadows.grown(preset("bfloat16", names))


def test_a_shadow_beside_others_trains_no_further_than_its_step(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, step = [], Trainer.step

    def counted(self: Trainer, *batch: Any) -> tuple[float, float, bool]:
        taken.append(self.step_index)
        return step(self, *batch)

    monkeypatch.setattr(Trainer, "step", counted)
    shadows = Shadows(objective, 0, others=(7,))
    assert taken == list(range(TASK.steps - 1))
    usual, at_seven, at_three = (shadows.beside(n) for n in (30, 7, 3))
    assert taken[TASK.steps - 1 :] == [0, 1, 2]
    steps = [[moment.step for moment in each.moments] for each in (usual, at_seven, at_three)]
    assert steps == [[0, 30, 59], [0, 7, 30, 59], [0, 3, 30, 59]]
    alone = Shadows(objective, 0, others=(3,))
    for ours, theirs in zip(at_three.moments, alone.moments, strict=True):
        assert all(np.array_equal(ours.params[name], theirs.params[name]) for name in ours.params)
    assert at_three.error(low(objective)) == alone.error(low(objective))


def row(what: str, policy: Policy, rank: int = 0) -> Tried:
    return Tried(Repair(what, policy, rank), 0.01, 0.5, 1.0, 1.0)


@pytest.mark.parametrize("kind", ["overflow", "born", "state"])
def test_changes_that_leave_values_near_their_limits_come_last_where_one_was_passed(
    kind: Kind, objective: Objective
) -> None:
    ops = "exp", "log", "tanh", "softmax"
    policies = [with_ops_wide(low(objective), [op]) for op in ops]
    named = list(zip("abcd", policies, (0, 0, 0, 1), strict=True))
    near = {policies[0], policies[3]}
    diagnoser = Diagnoser(objective, (0,))
    diagnoser._near = cast(Shadows, SimpleNamespace(near=near.__contains__))
    evidence = cast(
        Evidence, SimpleNamespace(cause=Cause(kind), shadow=SimpleNamespace(worst=math.inf))
    )
    worth = diagnoser._worth([row(*each) for each in named], evidence)
    order = "".join(each.repair.what for _, each in worth)
    assert order == ("abcd" if kind == "state" else "bcad")
    assert [place for place, _ in worth] == ["abcd".index(what) for what in order]


@pytest.mark.parametrize(
    "left, holds, apart, repair, order",
    [
        (0.9, {"wide", "near"}, False, "near", ["wide", "near"]),
        (0.9, {"wide"}, False, "wide", ["wide", "near"]),
        (0.55, {"wide", "near"}, False, "wide", ["wide"]),
        (0.9, {"wide", "near"}, True, "wide", ["wide"]),
        (0.9, set(), False, None, ["wide", "near"]),
    ],
)
def test_what_was_put_off_is_trained_too_where_it_leaves_much_more(
    left: float,
    holds: set[str],
    apart: bool,
    repair: str | None,
    order: list[str],
    objective: Objective,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, wide = (row(what, low(objective)) for what in ("near", "wide"))
    near = replace(near, left=left, repair=replace(near.repair, apart=apart))
    seen = []

    def trained(self: Diagnoser, table: list[Tried], place: int, matters: float) -> Any:
        seen.append(table[place].repair.what)
        return (0.0,) if seen[-1] in holds else ()

    monkeypatch.setattr(Diagnoser, "_table", lambda *_: ([near, wide], []))
    monkeypatch.setattr(Diagnoser, "_worth", lambda *_: [(1, wide), (0, near)])
    monkeypatch.setattr(Diagnoser, "_repair_gaps", trained)
    cause = SimpleNamespace(located=lambda graph: Cause("overflow"))
    evidence = cast(Evidence, SimpleNamespace(policy=low(objective), cause=cause))
    found = Diagnoser(objective, (0,))._repair_verdict(evidence, math.inf, 1.0, 0.0)
    assert (found.repair.what if found.repair else None, seen) == (repair, order)
    assert found.trained == (2 if repair == "near" or not repair else 1)


@pytest.mark.parametrize("share, kind", [(1.0, "underflow"), (0.1, "rounding")])
def test_squares_that_vanish_before_a_division_are_an_underflow(
    share: float, kind: str, objective: Objective
) -> None:
    """And no rounding, though their relative error is one."""

    def link(op: str) -> Link:
        return Link(op, "norm", "fprop", "float16", 65504.0, 1e-5, 1e-10, 0, 100, "net.py:3")

    origin = Origin("born", 4, "loss", False, (link("pow"), link("sqrt"), link("divide")))
    lost = LostValues("underflow", "norm", "fprop", int(100 * share), 100, 0, 1e-10, "pow")
    base = objective.baseline(0)
    run = replace(base, tail_loss=None, diverged_at=4, origins=(origin,), lost=(lost,))
    grown = [NodeError("pow", "norm", "fprop", 0.0, 1.0, "net.py:3")]
    cause = Evidence(low(objective), run, 60, ShadowError(math.inf, math.inf), grown).cause
    assert (cause.kind, cause.op, cause.layer, cause.step) == (kind, "pow", "norm", 4)
    assert cause.line == "net.py:3" and cause.chain == origin.chain
    assert cause.words.endswith(f"; then {origin.words}")
    assert share < 1.0 or cause.words.startswith("100 % became zero in norm (fprop), pow")


def test_work_left_counts_what_is_low(objective: Objective) -> None:
    policy = low(objective)
    layer = "fc1"
    work = [
        low_work(objective.step_graph(each))
        for each in (
            policy,
            with_ops_wide(policy, ["tanh"]),
            with_layers_in(policy, [layer], "float32"),
            preset("float32", objective.model.layer_names),
        )
    ]
    assert work[0] > work[1] > work[2] > work[3] == 0.0
    bf16 = with_layers_in(policy, [layer], "bfloat16")
    np.testing.assert_equal(low_work(objective.step_graph(bf16)), work[0])


def test_the_command_says_it_and_writes_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: tuple[Policy, Diagnosis]
) -> None:
    study = write_study(tmp_path)
    assert main(["diagnose", "preset:bfloat16", "--study", str(study)]) == 0
    printed, said = capsys.readouterr()
    assert printed.startswith("verdict: none")
    least, most = runs(2, 6)
    estimated = rf"{least} runs of \d+ steps if nothing fails: about [\d.]+ \w+; at most {most} if"
    assert re.match(estimated, said) and f"{least}/{least} runs |" in said
    assert main(["diagnose", "preset:bfloat16", "--study", str(study), "--budget", "0"]) == 2
    assert "--budget: 0; expected at least 1" in capsys.readouterr().err
    _, found = state
    assert found.repair is not None
    text = found.repair.policy.to_json()
    assert from_json(text) == found.repair.policy


def test_the_users_line_is_said_first(state: tuple[Policy, Diagnosis]) -> None:
    policy, found = state
    link = Link("softmax", "attn", "fprop", "float16", 65504.0, 9.0, 1e5, 3, 9, "net.py:12")
    there: dict[str, Any] = {"role": "fprop", "step": 3, "chain": (link,), "line": "net.py:12"}
    cause = replace(found.cause, kind="overflow", op="softmax", layer="attn", **there)
    lines = diagnosis_page(replace(found, cause=cause), policy).splitlines()
    assert lines[2] == "cause: net.py:12: overflow, softmax of attn (fprop, step 3)"
    (titles,) = (at for at, line in enumerate(lines) if line.startswith("your line "))
    assert lines[titles + 1].startswith("net.py:12 ")


@pytest.mark.torch
def test_a_repair_trains_in_torch_as_here(objective: Objective) -> None:
    """Where every step is skipped torch skips them too, and the repair trains there."""
    pytest.importorskip("torch")
    policy = low(objective, loss_scale=LossScale("dynamic", 2.0**100))
    found = Diagnoser(objective, (0,)).diagnose(policy)
    assert found.verdict == "repaired" and found.repair is not None
    repaired = verify(found.repair.policy, TASK, steps=20)
    assert repaired.faults == () and len(repaired.losses) == 20
    assert np.isfinite(repaired.losses).all() and repaired.losses[-1] < repaired.losses[0]
    assert repaired.gaps.max() > 0.0 and not repaired.skipped.any()
    assert verify(policy, TASK, steps=4).skipped.all()
