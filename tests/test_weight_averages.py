"""The moving average of weights: torch's `AveragedModel`, the trainer, its price and notes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.api import explain
from policysearch.cost.devices import DEVICES
from policysearch.cost.memory import step_memory
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import step_time
from policysearch.data.datasets import load_dataset
from policysearch.formats import format_named
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast, fast_ways, quantise
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train.checkpoint import Checkpoint
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.studies import write_study

TASK = Task(
    model="mlp", data="digits", widths=(16,), batch_size=32, steps=40, tail_steps=5, ema_decay=0.9
)
DATA = load_dataset("digits")
MODEL = TASK.build_model(DATA)
NAMES = [spec.name for spec in MODEL.parameters()]
LOW = "bfloat16"


def begun(task: Task, name: str = "float32", **changes: Any) -> Trainer:
    policy = replace(preset(name, MODEL.layer_names), **changes)
    trainer = Trainer(MODEL, task, policy, seed=0)
    trainer.load(initial_parameters(MODEL, 0))
    return trainer


def take(trainer: Trainer, steps: int) -> list[float]:
    (images,), labels = DATA.train
    size, losses = trainer.task.batch_size, []
    for _ in range(steps):
        at = slice(trainer.step_index * size, (trainer.step_index + 1) * size)
        losses.append(trainer.step((images[at],), labels[at])[0])
    return losses


def kept(trainer: Trainer, suffix: str = "") -> dict[str, Any]:
    arrays = trainer.checkpoint("x", []).arrays
    return {name: arrays[name + suffix] for name in NAMES}


def judged(trainer: Trainer) -> tuple[float | None, float | None]:
    seen = trainer.evaluate(*DATA.validation)
    assert seen.mean_loss is not None
    return seen.mean_loss, seen.accuracy


def stored_low() -> dict[str, Any]:
    layers = tuple((name, uniform_layer(LOW, param=LOW)) for name in MODEL.layer_names)
    return {"layers": layers, "optimizer_state": LOW}


@pytest.mark.torch
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("storage", ["float32", LOW])
def test_averages_are_those_of_torch(storage: str, decay: float) -> None:
    """Of the same parameters, step by step; in bfloat16 those of a module in bfloat16."""
    torch = pytest.importorskip("torch")
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    task = replace(TASK, ema_decay=decay, ema_storage=storage)
    low = storage != "float32"
    trainer = begun(task, "apex.O3", **stored_low()) if low else begun(task)
    dtype = getattr(torch, storage)
    module = torch.nn.ParameterList(
        torch.tensor(np.array(array, order="C"), dtype=dtype) for array in kept(trainer).values()
    )
    theirs = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(decay))
    first = kept(trainer)
    for _ in range(10):
        take(trainer, 1)
        for tensor, array in zip(module, kept(trainer).values(), strict=True):
            tensor.data.copy_(torch.tensor(np.array(array, order="C")))
        theirs.update_parameters(module)
        averages = kept(trainer, ".ema")
        for tensor, array in zip(theirs.module, averages.values(), strict=True):
            expected = tensor.detach().float().numpy()
            np.testing.assert_allclose(array, expected, rtol=2e-2 if low else 3e-7, atol=1e-8)
            # torch may join the product and the sum in one rounding
            assert np.mean(array != expected) < (0.02 if low else 0.5)
    now = kept(trainer)
    if decay > 0.0:
        assert all(np.any(averages[name] != now[name]) for name in NAMES)
    assert all(np.any(now[name] != first[name]) for name in NAMES)


def test_it_changes_no_step() -> None:
    plain, averaged = begun(replace(TASK, ema_decay=None)), begun(TASK)
    assert take(plain, 5) == take(averaged, 5)
    assert all(np.array_equal(kept(plain)[name], kept(averaged)[name]) for name in NAMES)


def test_it_is_on_the_grid_of_its_own_format() -> None:
    trainer = begun(replace(TASK, ema_storage="float16"), LOW)
    take(trainer, 5)
    for array in kept(trainer, ".ema").values():
        np.testing.assert_array_equal(quantise(array, format_named("float16")), array)
        assert np.any(quantise(array, format_named(LOW)) != array)


@pytest.mark.parametrize("name", ["float32", "apex.O3"])
def test_validation_uses_the_average_where_asked(name: str) -> None:
    """As parameters that are the average: rounded to where the policy keeps parameters."""
    task = replace(TASK, ema_decay=0.99, learning_rate=0.2)
    changes = stored_low() if name == "apex.O3" else {}
    one, other = (begun(replace(task, ema_validates=v), name, **changes) for v in (True, False))
    take(one, 12), take(other, 12)
    assert judged(one) != judged(other)
    swapped = begun(task, name, **changes)
    swapped.load(kept(one, ".ema"))
    assert judged(one) == judged(swapped)
    assert np.array_equal(kept(one)[NAMES[0]], kept(other)[NAMES[0]])


def test_before_the_first_update_it_is_the_parameters() -> None:
    asked, plain = begun(replace(TASK, ema_validates=True)), begun(TASK)
    assert judged(asked) == judged(plain)


def test_a_skipped_step_moves_no_average() -> None:
    trainer = begun(TASK, LOW, loss_scale=LossScale("dynamic", 1024.0))
    take(trainer, 2)
    before = kept(trainer, ".ema")
    (images,), labels = DATA.train
    assert trainer.step((np.full_like(images[:32], np.inf),), labels[:32])[2]
    assert all(np.array_equal(before[n], kept(trainer, ".ema")[n]) for n in NAMES)


def test_micro_batches_move_it_once() -> None:
    trainer = begun(replace(TASK, accumulation_steps=2, batch_size=16, ema_decay=0.5))
    (images,), labels = DATA.train
    trainer.step((images[:32],), labels[:32])
    first = kept(trainer)
    assert all(np.array_equal(first[n], kept(trainer, ".ema")[n]) for n in NAMES)
    trainer.step((images[32:64],), labels[32:64])
    now, averages = kept(trainer), kept(trainer, ".ema")
    for name in NAMES:
        np.testing.assert_allclose(averages[name], (first[name] + now[name]) / 2, atol=1e-7)


def test_it_goes_on_from_a_checkpoint() -> None:
    whole, part = begun(TASK, LOW), begun(TASK, LOW)
    take(whole, 6), take(part, 3)
    file = Checkpoint.from_bytes(part.checkpoint("x", [(0.0, 1.0, False)] * 3).to_bytes())
    resumed = begun(TASK, LOW)
    resumed.restore(file)
    take(resumed, 3)
    averages = kept(whole, ".ema")
    assert all(np.array_equal(averages[n], kept(resumed, ".ema")[n]) for n in NAMES)


@pytest.mark.parametrize(("storage", "bytes"), [("float32", 4), (LOW, 2)])
def test_its_bytes_are_held_and_moved(storage: str, bytes: int) -> None:
    wide = replace(TASK, widths=(2048, 2048), ema_storage=storage)
    model = wide.build_model(DATA)
    policy = preset("float32", model.layer_names)
    count = sum(int(np.prod(spec.shape)) for spec in model.parameters())
    plain, averaged = (
        task.tracing(model, 8).step_graph(policy)
        for task in (replace(wide, ema_decay=None, ema_storage="float32"), wide)
    )
    held = [step_memory(graph).optimizer_bytes for graph in (plain, averaged)]
    assert held[1] - held[0] == bytes * count
    for stack in ("torch.eager", "torch.compile"):
        moved = [
            sum(
                kernel.bytes
                for kernel in step_time(graph, DEVICES["A100-SXM4-40GB"], STACKS[stack]).kernels
            )
            for graph in (plain, averaged)
        ]
        assert 2 * bytes * count <= moved[1] - moved[0] <= (2 * bytes + 4.01) * count


def test_the_loop_is_told_what_to_do() -> None:
    (note,) = replace(TASK, ema_validates=True, ema_storage=LOW).loop_notes
    assert "get_ema_multi_avg_fn(0.9)" in note and LOW in note and "validate" in note
    assert "validate" not in TASK.loop_notes[0] and not replace(TASK, ema_decay=None).loop_notes


def test_results_depend_on_it() -> None:
    tasks = [
        replace(TASK, **change)
        for change in (
            {},
            {"ema_decay": 0.8},
            {"ema_storage": LOW},
            {"ema_validates": True},
            {"ema_decay": None},
        )
    ]
    assert len({task.fingerprint for task in tasks}) == 5


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("ema_decay = 1.5", "ema_decay: 1.5; expected a number"),
        ("ema_validates = true", "ema_validates: true without ema_decay"),
        ('ema_storage = "bfloat16"', "ema_storage: 'bfloat16' without ema_decay"),
        ('ema_decay = 0.9\nema_storage = "bfloat61"', "ema_storage: "),
    ],
)
def test_what_no_average_is_is_an_input_error(lines: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_spec(write_study(tmp_path, ("[task]\n", f"[task]\n{lines}\n")))
    assert "\n" not in str(caught.value)


def test_a_study_trains_and_prices_with_it(tmp_path: Path) -> None:
    lines = 'ema_decay = 0.999\nema_storage = "bfloat16"\nema_validates = true'
    path = write_study(
        tmp_path,
        *(("[task]\n", f"[task]\n{lines}\n"), ("trials = 6", "trials = 2")),
        ("seeds = [0, 1]", "seeds = [0]"),
    )
    spec = load_spec(path)
    results = run_study(spec, tmp_path / "tiny.journal", processes=0)
    assert len(results.trials) == 2 and all(trial.cost for trial in results.trials)
    model = spec.task.build_model(spec.task.load_dataset())
    policy = preset("bfloat16", model.layer_names)
    assert "AveragedModel" in explain(policy, spec.task)


@pytest.mark.parametrize("fast", fast_ways())
def test_every_way_gives_the_bits_of_the_reference(fast: Fast) -> None:
    for storage in ("float32", LOW, "float16"):
        task = replace(TASK, ema_storage=storage)
        for policy in (preset("bfloat16", MODEL.layer_names), preset("apex.O3", MODEL.layer_names)):
            graph = task.tracing(MODEL, 8).step_graph(policy)
            assert_gives_the_bits_of_the_reference(graph, started(graph, MODEL), fast, steps=3)


@pytest.mark.torch
def test_verify_trains_beside_it() -> None:
    pytest.importorskip("torch")
    from policysearch.verify.verdict import verify

    task = replace(TASK, steps=10, ema_validates=True)
    assert verify(preset("torch.autocast.bfloat16", MODEL.layer_names), task, steps=10).faults == ()
