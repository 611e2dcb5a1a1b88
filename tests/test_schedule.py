"""Learning-rate schedules against torch's and Hugging Face's schedulers, number by number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.study.specification import load_spec
from policysearch.train.schedule import KINDS, Schedule
from policysearch.train.tasks import Task
from policysearch.values import InputError, from_plain, to_plain
from tests.studies import write_study

TASK = Task(steps=1000, tail_steps=5, learning_rate=0.0123)
TORCH = [
    Schedule(),
    Schedule("step", period_steps=130, factor=0.3),
    Schedule("multistep", milestones=(1, 300, 300, 450, 1100), factor=0.3),
    Schedule("exponential", factor=0.995),
    Schedule("linear"),
    Schedule("linear", period_steps=400, final_factor=0.2),
    Schedule("polynomial", power=0.9),
    Schedule("polynomial", power=2.0, period_steps=700),
    Schedule("cosine"),
    Schedule("cosine", final_factor=0.1),
    Schedule("cosine", least_rate=0.0017),
    Schedule("cosine", period_steps=333),
    Schedule("cosine_restarts", period_steps=90, final_factor=0.01),
    Schedule("cosine_restarts", period_steps=40, period_factor=2),
]
CYCLES = [
    Schedule("one_cycle"),
    Schedule("one_cycle", peak_share=0.0, end_divisor=10.0),
    Schedule("one_cycle", peak_share=0.25, start_divisor=7.3, three_phase=True),
    Schedule("one_cycle", shape="linear", peak_share=0.41),
    Schedule("one_cycle", momenta=(0.95, 0.85)),
    Schedule("one_cycle", momenta=(0.97, 0.6), three_phase=True, peak_share=0.3),
    Schedule("one_cycle", momenta=(0.8, 0.9), shape="linear"),
]
HUGGING_FACE = [
    Schedule("hf.constant_with_warmup"),
    Schedule("hf.linear"),
    Schedule("hf.cosine"),
    Schedule("hf.cosine", cycles=2.25),
    Schedule("hf.cosine_with_restarts"),
    Schedule("hf.cosine_with_restarts", cycles=3.0),
    Schedule("hf.cosine_with_min_lr", final_factor=0.1),
    Schedule("hf.polynomial", final_factor=1e-4),
    Schedule("hf.polynomial", power=2.5),
    Schedule("hf.inverse_sqrt"),
    Schedule("hf.inverse_sqrt", period_steps=37),
    Schedule("hf.warmup_stable_decay", decay_steps=200),
    Schedule("hf.warmup_stable_decay", decay_steps=201, cycles=1.5, final_factor=0.1),
    Schedule("hf.warmup_stable_decay", decay_steps=900, shape="linear", final_factor=0.1),
    Schedule("hf.warmup_stable_decay", decay_steps=300, shape="1-sqrt"),
]
RISES: list[dict[str, Any]] = [{}, {"warmup_steps": 7}, {"warmup_steps": 100}]
FACTORS: list[dict[str, Any]] = [*RISES, *({**RISES[2], "warmup_factor": f} for f in (0.0, 0.01))]


def _said(row: Schedule) -> str:
    return "-".join(map(str, row.to_plain().values()))


def assert_rates_are(row: Schedule) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_schedules import torch_schedule

    task = replace(TASK, schedule=row)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=task.learning_rate)
    schedule, theirs = torch_schedule(optimizer, task), []
    for _ in range(task.steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    ours = [task.rate_at(step) for step in range(task.steps)]
    still = row.kind.partition("_")[0] in ("constant", "hf.constant") and not row.warmup_steps
    assert len(set(ours)) > 2 or still
    np.testing.assert_array_equal(np.array(ours, np.float32), np.array(theirs, np.float32))


torch_test = pytest.mark.torch
quiet = pytest.mark.filterwarnings("ignore:.*optimizer.step.*:UserWarning")


@torch_test
@quiet
@pytest.mark.parametrize("warmup", FACTORS, ids=str)
@pytest.mark.parametrize("row", TORCH, ids=_said)
def test_rates_are_torchs(row: Schedule, warmup: dict[str, Any]) -> None:
    assert_rates_are(replace(row, **warmup))


@torch_test
@quiet
@pytest.mark.parametrize("row", CYCLES, ids=_said)
def test_rates_of_one_cycle_are_torchs(row: Schedule) -> None:
    assert_rates_are(row)


@torch_test
@quiet
@pytest.mark.parametrize("warmup", RISES, ids=str)
@pytest.mark.parametrize("row", HUGGING_FACE, ids=_said)
def test_rates_are_hugging_faces(row: Schedule, warmup: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    assert_rates_are(replace(row, **warmup))


@torch_test
@quiet
@pytest.mark.parametrize("name", ["waves", "CyclicLR", "ChainedScheduler"])
def test_recorded_rates_are_those_of_any_scheduler(name: str) -> None:
    """Of schedulers that no other kind is."""
    torch = pytest.importorskip("torch")
    from policysearch.train.scripts.recipe import recorded

    of = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0123)
    scheduler = {
        "waves": lambda: of.LambdaLR(optimizer, lambda step: 1.0 + 0.5 * np.sin(step / 7.0)),
        "CyclicLR": lambda: of.CyclicLR(
            optimizer, 0.001, 0.02, step_size_up=37, cycle_momentum=False
        ),
        "ChainedScheduler": lambda: of.ChainedScheduler(
            [of.ExponentialLR(optimizer, 0.99), of.ConstantLR(optimizer, 0.3, 50)]
        ),
    }[name]()
    said = recorded(optimizer, [(scheduler, 1)], TASK.steps)
    assert said["schedule"].kind == "recorded"
    # shares are of what the scheduler began with, which a cycle sets itself
    task, theirs = replace(TASK, learning_rate=optimizer.param_groups[0]["initial_lr"], **said), []
    for _ in range(task.steps):
        theirs.append(optimizer.param_groups[0]["lr"])
        scheduler.step()
    ours = [task.rate_at(step) for step in range(task.steps)]
    assert len(set(ours)) > 2
    np.testing.assert_array_equal(np.array(ours, np.float32), np.array(theirs, np.float32))


def test_every_kind_is_compared() -> None:
    """A "recorded" one has its schedulers in a test of its own."""
    rows = {row.kind for row in (*TORCH, *CYCLES, *HUGGING_FACE)}
    assert rows | {"recorded"} == KINDS.keys() and "recorded" not in rows


@torch_test
def test_one_cycle_is_refused_where_torch_divides_by_zero() -> None:
    """Over each short run, the rise ends as torch's does, or neither can be had."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_schedules import torch_schedule

    outcomes = set()
    for steps in range(1, 13):
        for share in (0.0, 0.1, 0.25, 0.5, 1.0):
            for three_phase in (False, True):
                row = Schedule("one_cycle", peak_share=share, three_phase=three_phase)
                optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
                task = replace(TASK, learning_rate=1.0, steps=steps, tail_steps=1)
                object.__setattr__(task, "schedule", row)  # What is refused is asked of torch too.
                theirs: list[float] | None = []
                try:
                    schedule = torch_schedule(optimizer, task)
                    for _ in range(steps):
                        theirs = [*(theirs or []), optimizer.param_groups[0]["lr"]]
                        optimizer.step()
                        schedule.step()
                except ZeroDivisionError:
                    theirs = None
                try:
                    task = replace(task)
                    ours = [task.rate_at(step) for step in range(steps)]
                except InputError:
                    ours = None
                assert ours == theirs, (steps, share, three_phase)
                outcomes.add(ours is None)
    assert outcomes == {False, True}


def test_a_schedule_is_a_table_of_the_task() -> None:
    task = replace(TASK, schedule=Schedule("multistep", milestones=(5, 9), warmup_steps=5))
    assert from_plain(Task, to_plain(task), "task") == task
    assert task.fingerprint != TASK.fingerprint
    later = replace(TASK, schedule=Schedule("multistep", milestones=(5, 10), warmup_steps=5))
    assert task.fingerprint != later.fingerprint


def test_fingerprints_are_those_before_there_were_more_kinds() -> None:
    """Journals of older studies go on."""
    old = Schedule("cosine", 0, 0.1, 0.01, 5)
    assert Task().fingerprint == "0c0e90f5310c1192d7c7197048090442bf7332673ae09e5f98edb3fafd887c9d"
    assert (
        replace(Task(), schedule=old).fingerprint
        == "a90db9737c0cd42cb3e3076077dc452708b7fe750d982b77d97324789d65c544"
    )


@pytest.mark.parametrize("row", [*TORCH, *CYCLES, *HUGGING_FACE], ids=_said)
def test_a_schedule_is_stretched_with_the_run(row: Schedule) -> None:
    """At half and at three times the steps the rates are those of the same share of the run."""
    row = row if row.kind == "one_cycle" else replace(row, warmup_steps=100)
    task = replace(TASK, schedule=row)
    assert task.with_steps(task.steps) == task
    for steps in (500, 3000):
        other = task.with_steps(steps)
        shares = [
            (task.rate_at(step), other.rate_at(step * steps // task.steps))
            for step in range(0, task.steps, 2)
        ]
        largest = max(rate for rate, _ in shares)
        far = [abs(ours - theirs) > 0.03 * largest for ours, theirs in shares]
        assert np.mean(far) < 0.02, row  # A jump may come a step earlier or later.
    for steps in range(1, 30):
        if row.kind != "one_cycle" or row.peak_share * steps not in (0.5, 1.0):
            rates = [task.with_steps(steps).rate_at(step) for step in range(steps)]
            assert 0.0 <= min(rates) <= max(rates) <= TASK.learning_rate * (1.0 + 1e-15)


def test_a_time_scale_that_nobody_gave_is_stretched_too() -> None:
    task = replace(TASK, schedule=Schedule("hf.inverse_sqrt"))
    assert task.with_steps(500).schedule.period_steps == 5000
    warm = replace(TASK, schedule=Schedule("hf.inverse_sqrt", warmup_steps=10))
    assert warm.with_steps(500).schedule.period_steps == 0  # It is the warm-up, then as now.


def test_the_smallest_rate_is_one_after_the_rise() -> None:
    cycle = replace(TASK, schedule=Schedule("one_cycle", start_divisor=50.0, end_divisor=0.5))
    assert cycle.smallest_rate == pytest.approx(TASK.learning_rate / 25.0)
    decay = Schedule("hf.warmup_stable_decay", decay_steps=9, warmup_steps=9, final_factor=0.1)
    smallest = replace(TASK, schedule=decay).smallest_rate
    assert 0.1 < smallest / TASK.learning_rate < 0.15
    assert replace(TASK, schedule=Schedule("hf.linear")).smallest_rate == pytest.approx(0.000123)


def test_a_rate_that_grows_too_large_is_infinite_as_torchs_is() -> None:
    assert replace(TASK, schedule=Schedule("exponential", factor=1e6)).rate_at(999) == np.inf
    assert replace(TASK, schedule=Schedule("exponential", factor=1e6)).with_steps(5).steps == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "hf.linaer"}, "schedule kind: 'hf.linaer'; did you mean 'hf.linear'"),
        ({"kind": "plateau"}, "schedule kind: 'plateau'; expected one whose rate is known before"),
        ({"kind": "step"}, "schedule period_steps: 0 with kind 'step'"),
        ({"kind": "multistep"}, r"schedule milestones: \[\] with kind 'multistep'; expected at "),
        ({"kind": "hf.warmup_stable_decay"}, "schedule decay_steps: 0 with kind"),
        ({"kind": "multistep", "milestones": (3, 2)}, r"milestones: \[3, 2\]; expected rising"),
        ({"kind": "multistep", "milestones": (0,)}, "schedule milestones: 0; expected a number"),
        ({"kind": "one_cycle", "shape": "1-sqrt"}, "shape: '1-sqrt' with kind 'one_cycle'; exp"),
        ({"kind": "one_cycle", "warmup_steps": 3}, "schedule warmup_steps: 3 with kind 'one_cyc"),
        ({"kind": "hf.polynomial", "final_factor": 1.0}, "schedule final_factor: 1 with kind"),
        ({"kind": "hf.linear", "warmup_factor": 0.5}, "warmup_factor: 0.5 with kind 'hf.linear'"),
        ({"kind": "step", "period_steps": 3, "power": 2.0}, "power: 2.0 with kind 'step', which"),
        ({"shape": "wavy"}, "schedule shape: 'wavy'; expected one of cosine, linear, 1-sqrt"),
        ({"warmup_steps": -1}, "schedule warmup_steps"),
        ({"warmup_factor": -0.1}, "schedule warmup_factor"),
        ({"final_factor": 2.0}, "schedule final_factor"),
        ({"cycles": -1.0}, "schedule cycles"),
    ],
)
def test_what_no_schedule_is_is_an_input_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Schedule(**given)
    assert "\n" not in str(caught.value)


def test_a_decay_longer_than_the_run_is_an_input_error_of_the_task() -> None:
    row = Schedule("hf.warmup_stable_decay", warmup_steps=100, decay_steps=901)
    with pytest.raises(InputError, match=r"warmup_steps \+ decay_steps: 1001; .* the 1000 steps"):
        replace(TASK, schedule=row)
    replace(TASK, schedule=replace(row, decay_steps=900))


def test_what_old_kinds_do_not_read_is_left_in_their_files() -> None:
    assert Schedule("constant", period_steps=5, final_factor=0.5).rate(0.1, 3, 9) == 0.1


def test_study_files_say_schedules(tmp_path: Path) -> None:
    table = '[task.schedule]\nkind = "hf.warmup_stable_decay"\ndecay_steps = 2\nwarmup_steps = 2'
    spec = load_spec(write_study(tmp_path, ("[cost]", f"{table}\n\n[cost]")))
    rates = [spec.task.rate_at(step) / spec.task.learning_rate for step in range(6)]
    assert rates == [0.0, 0.5, 1.0, 1.0, 1.0, 0.5]
    for wrong, message in (
        ('kind = "plateau"', r"task.schedule.schedule kind: 'plateau'; expected one whose rate"),
        ('kind = "one_cycle"\npower = 2', r"schedule power: 2.0 with kind 'one_cycle', which"),
    ):
        with pytest.raises(InputError, match=message):
            load_spec(write_study(tmp_path, ("[cost]", f"[task.schedule]\n{wrong}\n\n[cost]")))


@pytest.mark.parametrize("kind", ["constant", "cosine", "hf.linear"])
def test_a_warm_up_longer_than_the_run_is_refused(kind: str) -> None:
    """The rate would never be reached; as long as the run is as long as it may be."""
    Schedule(kind, warmup_steps=40).check_length(40)
    with pytest.raises(InputError, match="schedule warmup_steps: 41; expected at most the 40"):
        Task(steps=40, tail_steps=5, schedule=Schedule(kind, warmup_steps=41))
