"""Schedules that move momentum, and groups that end at one rate, against torch's own loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.diagnose.shadow import Shadows
from policysearch.objective.objective import Objective
from policysearch.ops.source import MOMENTUM, MOMENTUM_SHARE
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError
from policysearch.verify.verdict import verify
from tests.test_groups import FIELDS

CYCLE = Schedule("one_cycle", momenta=(0.95, 0.6))
RECIPES: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "momentum", "learning_rate": 0.1},
    "nesterov": {"optimizer": "momentum", "learning_rate": 0.05, "nesterov": True},
    "adam": {"optimizer": "adam", "learning_rate": 0.003},
    "adamw": {"optimizer": "adamw", "learning_rate": 0.003, "weight_decay": 0.1},
}


def task_of(kind: str, schedule: Schedule = CYCLE) -> Task:
    return Task(**{**FIELDS, **RECIPES[kind], "schedule": schedule})


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*optimizer.step.*:UserWarning")
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_momentum_is_torchs_to_the_last_bit(kind: str, three_phase: bool, shape: Any) -> None:
    """Over 1,000 steps, the rate beside it too; a recording of it has the same numbers."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_schedules import torch_schedule
    from policysearch.train.scripts.recipe import recorded

    row = replace(CYCLE, three_phase=three_phase, shape=shape)
    task = Task(steps=1000, tail_steps=5, learning_rate=0.0123, optimizer=kind, schedule=row)
    of = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    given = {} if kind == "adam" else {"momentum": 0.9}
    optimizer = of([torch.nn.Parameter(torch.zeros(1))], lr=0.0123, **given)
    schedule, theirs = torch_schedule(optimizer, task), []
    kept = recorded(optimizer, [(schedule, 1)], 1000)["schedule"]
    for _ in range(1000):
        group = optimizer.param_groups[0]
        theirs.append((group["lr"], group["betas"][0] if kind == "adam" else group["momentum"]))
        schedule.step()
    ours = [(task.rate_at(step), task.momentum_at(step)) for step in range(1000)]
    assert [m for _, m in ours] == [m for _, m in theirs] and len(set(ours)) > 300
    np.testing.assert_array_equal(np.array(ours, np.float32), np.array(theirs, np.float32))
    base = theirs[0][0]
    again = [(kept.rate(base, step, 1000), kept.momentum(step, 1000)) for step in range(1000)]
    np.testing.assert_array_equal(np.array(again, np.float32), np.array(theirs, np.float32))
    assert kept.momentum(0, 500) == 0.95 and kept.momentum(150, 500) == kept.momenta[300]


@pytest.mark.torch
@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16"])
@pytest.mark.parametrize("kind", RECIPES)
def test_a_training_is_torchs(kind: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    task, dataset = task_of(kind), load_dataset("digits")
    model = task.build_model(dataset)
    policy = preset(name, model.layer_names)
    ours = train(task, policy, 0, dataset=dataset)
    torch.set_num_threads(1)
    order = batch_order(task, dataset, 0)
    theirs, jittered = (
        train_in_torch(TorchNet(model, policy, initial), task, dataset, order)
        for initial in (initial_parameters(model, 0), initial_parameters(model, 0, 1e-6))
    )
    noise = abs(jittered.losses - theirs.losses).max()
    assert 0.0 < noise < 0.02 and abs(ours.losses - theirs.losses).max() <= 2.0 * noise
    still = train(task_of(kind, replace(CYCLE, momenta=())), policy, 0, dataset=dataset)
    assert abs(still.losses / theirs.losses - 1).max() > 0.02  # momentum has moved


@pytest.mark.torch
@pytest.mark.parametrize("order", ["eager", "fused"])
@pytest.mark.parametrize("kind", RECIPES)
def test_parameters_stored_low_move_as_torchs(kind: str, order: Any) -> None:
    """`verify` steps torch's optimizer of bfloat16 parameters with the same momentum."""
    pytest.importorskip("torch")
    task = replace(task_of(kind), steps=12, tail_steps=2)
    model = task.build_model(load_dataset("digits"))
    policy = replace(preset("bfloat16", model.layer_names), optimizer_order=order)
    verdict = verify(policy, task, steps=12)
    assert verdict.faults == ()


def test_the_number_is_fed_where_it_moves_and_nowhere_else() -> None:
    dataset = load_dataset("digits")
    for kind, name in (("momentum", MOMENTUM), ("adamw", MOMENTUM_SHARE)):
        for schedule in (CYCLE, Schedule()):
            task = task_of(kind, schedule)
            graph = task.tracing(task.build_model(dataset), 8).float32
            fed = [n.name for n in graph.nodes if n.name in (MOMENTUM, MOMENTUM_SHARE)]
            assert fed == ([name] if schedule.momenta else [])


def test_moments_that_are_looked_at_are_fed_it_too() -> None:
    """Without it beta1 is 1, and its correction divides by zero."""
    objective = Objective(task_of("adamw"), "L4", "torch.compile")
    assert Shadows(objective, 0).lost(objective.float32) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "lion"}, "'lion', dampening 0: the schedule moves momentum; expected kind "),
        ({"dampening": 0.1}, "'momentum', dampening 0.1: the schedule moves momentum; expected"),
    ],
)
def test_optimizers_whose_momentum_no_schedule_moves_refuse(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replace(task_of("momentum"), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"momenta": (0.9,)}, "schedule momenta: 1; expected 2"),
        ({"momenta": (0.9, 1.0)}, "schedule momenta: 1.0; expected a number"),
        ({"kind": "linear", "momenta": (0.9, 0.8)}, "schedule momenta: .* does not read it"),
        ({"kind": "recorded", "shares": (1.0, 0.5), "floors": (0.1,)}, "floors: 1; expected 2"),
        ({"kind": "cosine", "least_rate": 0.1, "final_factor": 0.1}, "final_factor: 0.1 beside"),
    ],
)
def test_what_no_momenta_are_is_an_input_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(**{"kind": "one_cycle", **given})
    assert Optimizer("momentum", cycled=True).cycled


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["cycle", "eta_min", "restarts"])
def test_a_script_is_taken_with_what_its_scheduler_moves(kind: str, tmp_path: Path) -> None:
    """One cycle as torch makes it by default; groups of several rates that end at one."""
    torch = pytest.importorskip("torch")
    from tests.test_scripts import net, read

    of = torch.optim.lr_scheduler

    def made(module: Any) -> tuple[Any, Any]:
        weights = [p for p in module.parameters() if p.ndim > 1]
        others = [p for p in module.parameters() if p.ndim == 1]
        groups = [{"params": weights, "lr": 0.1}, {"params": others, "weight_decay": 0.01}]
        optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
        return optimizer, {
            "cycle": lambda: of.OneCycleLR(optimizer, [0.5, 0.2], total_steps=12),
            "eta_min": lambda: of.SequentialLR(
                optimizer,
                [of.LinearLR(optimizer, 0.1, 1.0, 3), of.CosineAnnealingLR(optimizer, 9, 0.01)],
                [3],
            ),
            "restarts": lambda: of.CosineAnnealingWarmRestarts(optimizer, 5, eta_min=0.005),
        }[kind]()

    module = net()
    optimizer, scheduler = made(module)
    script = read(tmp_path, module=module, optimizer=optimizer, scheduler=scheduler, steps=12)
    ours = train(script.task, preset("float32", script.model.layer_names), 0, dataset=script.data)
    module = net()
    theirs = list(losses(module, *made(module), script))
    np.testing.assert_allclose(ours.losses, theirs, rtol=2e-6)
    moved = script.recipe["schedule"]
    assert bool(moved.momenta) == (kind == "cycle") and bool(moved.floors) == (kind != "cycle")


def losses(module: Any, optimizer: Any, scheduler: Any, script: Any) -> Iterator[float]:
    """Train in torch on the batches of a script; yield the losses."""
    import torch

    (x,), y = script.data.train
    for rows in batch_order(script.task, script.data, 0):
        inputs, labels = (torch.from_numpy(np.array(array[rows])) for array in (x, y))
        loss = torch.nn.functional.cross_entropy(module(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        yield loss.item()
