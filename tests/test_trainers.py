"""Scripts as users write them, read as tasks: their losses here are those of the scripts in torch.

`pytest -m trainers`, with transformers, lightning and accelerate installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policysearch as ps
from policysearch.cli import main
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.training import train

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("default")]

MIXED = ("torch.autocast.bfloat16", "torch.autocast.float16")
JITTER = 1e-6

MADE = """

def made() -> Trainer:
    args = TrainingArguments("out", max_steps=8, use_cpu=True)
    given = {"train_dataset": Text(True), "eval_dataset": Text(True)}
    return Trainer(model=model("bert"), args=args, **given)
"""

Losses = np.ndarray[Any, Any]
Change = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_loop(loop: str) -> tuple[Callable[..., ps.Script], Callable[[Change], list[float]]]:
    """Return how a plain loop is read, and how it runs when its net is changed."""
    import torch

    from tests import script_plain as script

    def read(**options: Any) -> ps.Script:
        net = script.net()
        optimizer = script.optimizer_of(net)
        return ps.from_loader(
            net,
            script.loader(),
            loss=script.loss_of,
            steps=script.STEPS,
            optimizer=optimizer,
            scheduler=script.scheduler_of(optimizer),
            accumulation_steps=script.ACCUMULATED,
            clip_norm=0.5,
            **options,
        )

    def run(change: Change) -> list[float]:
        net = change(script.net())
        torch.manual_seed(0)
        losses: list[float] = getattr(script, loop)(net, script.loader())
        return losses

    return read, run


def lightning_run() -> tuple[Callable[..., ps.Script], Callable[[Change], list[float]]]:
    import lightning
    import torch

    from tests import script_lightning as script

    class Record(lightning.Callback):
        def __init__(self) -> None:
            self.losses: list[float] = []

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
            self.losses.append(float(outputs["loss"]))

    def read(**options: Any) -> ps.Script:
        return ps.from_lightning(script.net(), script.Data(), script.trainer(), **options)

    def run(change: Change) -> list[float]:
        record = Record()
        net, trainer = change(script.net()), script.trainer(callbacks=[record])
        torch.manual_seed(0)
        trainer.fit(net, script.Data())
        # each is already divided by the micro-batches of its step
        return [float(x) for x in np.array(record.losses).reshape(-1, 4).sum(axis=1)]

    return read, run


def trainer_run(
    kind: str, folder: Path
) -> tuple[Callable[..., ps.Script], Callable[[Change], list[float]]]:
    from tests import script_hf as script

    def read(**options: Any) -> ps.Script:
        return ps.from_trainer(script.trainer(kind, folder), **options)

    def run(change: Change) -> list[float]:
        trainer = script.trainer(kind, folder)
        trainer.model = trainer.model_wrapped = change(trainer.model)
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    return read, run


def script_named(name: str, folder: Path) -> Any:
    pytest.importorskip({"lightning": "lightning", "accelerated": "accelerate"}.get(name, "torch"))
    if name in ("gpt2", "bert"):
        pytest.importorskip("transformers")
        return trainer_run(name, folder)
    return lightning_run() if name == "lightning" else run_loop(name)


SCRIPTS = ("plain", "accelerated", "lightning", "gpt2", "bert")


def emulated(script: ps.Script, policy: Policy) -> Losses:
    return train(script.task, policy, 0, dataset=script.data).losses


@pytest.mark.parametrize("name", SCRIPTS)
def test_float32_has_the_losses_of_the_script(name: str, tmp_path: Path) -> None:
    read, run = script_named(name, tmp_path)
    script = read(spool=tmp_path / "x.spool")
    task = script.task
    assert task.accumulation_steps == 4 and task.clip_norm == 0.5 and task.groups
    assert task.rate_at(0) < task.rate_at(4) > task.rate_at(19) and task.optimizer == "adamw"
    assert script.baseline == "float32"
    theirs = np.array(run(lambda net: net))
    ours = emulated(script, preset("float32", script.model.layer_names))
    assert len(theirs) == 20 and theirs[-3:].mean() < theirs[:3].mean()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("policy", MIXED)
@pytest.mark.parametrize("name", SCRIPTS)
def test_mixed_policies_have_the_losses_of_the_script_under_the_exported_file(
    name: str, policy: str, tmp_path: Path
) -> None:
    read, run = script_named(name, tmp_path)
    script = read(spool=tmp_path / "x.spool")
    mixed = replace(preset(policy, script.model.layer_names), loss_scale=ps.LossScale())
    ps.export_policy(mixed, ps.study_of(script, "L4", name="x"), tmp_path)
    exported = loaded(tmp_path / "x-torch.py")
    theirs = np.array(run(lambda net: exported.apply_policy(net)))
    jittered = np.array(run(lambda net: exported.apply_policy(shaken(net, script))))
    ours = emulated(script, mixed)
    noise = np.abs(theirs - jittered).max()
    assert len(theirs) == 20 and 0.0 < noise < 0.1
    float32 = emulated(script, preset("float32", script.model.layer_names))
    assert np.abs(ours - float32).max() > 1e-5  # the policy has done something
    assert np.abs(ours - theirs).max() <= 2.0 * noise


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_validation_is_what_the_trainer_evaluates(kind: str, tmp_path: Path) -> None:
    """Loss and accuracy of the script's own evaluation, whose loss is no sum over micro-batches."""
    pytest.importorskip("transformers")
    from tests import script_hf

    def own(given: Any) -> dict[str, float]:
        outputs, labels = given.predictions, given.label_ids
        if kind == "gpt2":
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        known = labels != -100
        return {"accuracy": float((outputs.argmax(-1) == labels)[known].mean())}

    trainer = script_hf.trainer(kind, tmp_path)
    trainer.eval_dataset = script_hf.Text(classes=kind == "bert")
    trainer.compute_metrics = own
    script = ps.from_trainer(trainer, spool=tmp_path / "x.spool", validation_batches=12)
    assert [line for line in script.taken if line.startswith("outputs: ")]
    policy = preset("float32", script.model.layer_names)
    ours = train(script.task, policy, 0, dataset=script.data)
    trainer.train()
    theirs = trainer.evaluate()
    assert 0.1 < theirs["eval_accuracy"] <= 1.0 and trainer.args.gradient_accumulation_steps == 4
    assert ours.validation_accuracy == pytest.approx(theirs["eval_accuracy"], abs=1e-12)
    assert ours.validation_loss == pytest.approx(theirs["eval_loss"], rel=1e-5)


def test_a_function_that_returns_a_trainer_is_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands: `init` writes its study, which runs."""
    pytest.importorskip("transformers")
    text = Path(__file__).with_name("script_hf.py").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    Path("tune.py").write_text(text + MADE)
    assert main(["init", "tune.py"]) == 0
    assert 'script = "tune.py:made"' in Path("tune.toml").read_text()
    said = capsys.readouterr().out
    assert "outputs: the module, logits" in said and "validation: 64 examples" in said
    assert main(["run", "tune.toml", "--trials", "1"]) == 0
    assert "verdict: " in capsys.readouterr().out


def test_a_lightning_module_has_accuracy_and_a_metric(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from tests import script_lightning

    script = ps.from_lightning(
        script_lightning.net(),
        script_lightning.Data(),
        script_lightning.trainer(),
        spool=tmp_path / "x.spool",
    )
    assert "outputs: the module" in script.taken
    task = replace(script.task, metric=mean_margin)
    policy = preset("float32", script.model.layer_names)
    run = train(task, policy, 0, dataset=script.data)
    assert run.validation_accuracy is not None and 0.5 < run.validation_accuracy < 1.0
    assert run.metric is not None and run.metric > 0.0


def mean_margin(outputs: Any, labels: Any) -> float:
    """Return how far the right class is above the mean of all."""
    right = np.take_along_axis(outputs, labels[:, None], axis=1)[:, 0]
    return float((right - outputs.mean(axis=1)).mean())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_grad_scaler_skips_the_same_steps(tmp_path: Path) -> None:
    """From a scale whose first steps overflow; one that grows again on the way."""
    import torch

    from tests import script_plain

    read, _ = run_loop("scaled")
    script = read(spool=tmp_path / "x.spool", precision="fp16")
    assert script.baseline == "torch.autocast.float16"
    options: dict[str, Any] = {"init_scale": 2.0**24, "growth_interval": 8}
    scale = ps.LossScale("dynamic", **options)
    policy = replace(preset(script.baseline, script.model.layer_names), loss_scale=scale)
    ps.export_policy(policy, ps.study_of(script, "L4", name="x"), tmp_path)
    exported = loaded(tmp_path / "x-torch.py")

    def run(shake: bool) -> tuple[Losses, list[float]]:
        net = script_plain.net()
        net = exported.apply_policy(shaken(net, script) if shake else net)
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", **options)
        losses, scales = script_plain.scaled(net, script_plain.loader(), scaler)
        return np.array(losses), scales

    (theirs, scales), (jittered, _) = run(False), run(True)
    skipped = [after < before for before, after in pairwise(scales)]
    assert 2 < sum(skipped) < 15 and any(a > b for b, a in pairwise(scales))
    ours = train(script.task, policy, 0, dataset=script.data)
    assert list(ours.scales) == scales and list(ours.skipped)[:-1] == skipped
    noise = np.abs(theirs - jittered).max()
    assert 0.0 < noise < 0.1 and np.abs(ours.losses - theirs).max() <= 2.0 * noise


def shaken(net: Any, script: ps.Script) -> Any:
    """Return the net with its values moved as `jitter` moves them here."""
    import torch

    values = initial_parameters(script.model, 0, JITTER)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
    return net


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("exported_script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported_script"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("place", [1, 3])
def test_the_blocks_of_the_page_run(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("lightning")
    from tests import script_hf, script_lightning
    from tests.test_own_script import blocks

    monkeypatch.chdir(tmp_path)
    code = blocks("python")
    trainer = script_hf.trainer("gpt2", Path("out"), save_steps=10)
    trainer.args.save_strategy = "steps"
    space: dict[str, Any] = {"ps": ps, "trainer": trainer}
    if place == 3:
        trainer.train()
        theirs = [row["loss"] for row in trainer.state.log_history if "loss" in row][10:]
        fresh = script_hf.trainer("gpt2", Path("out"))
        space["trainer"] = fresh
        exec(code[3].replace("checkpoint-1000", "checkpoint-10"), space)
        script = space["script"]
        assert script.task.steps == 10 and script.model.updates_done == 10
        ours = emulated(script, preset("float32", script.model.layer_names))
        # the batches are other ones; the weights and the rates are not
        assert abs(ours.mean() / np.mean(theirs) - 1) < 0.02
        rates = [script.task.rate_at(step) for step in range(10)]
        np.testing.assert_allclose(rates, [5e-3 * (10 - n) / 15 for n in range(10)])
        return
    calm = "run_study(study, trials=1, processes=0)"
    exec(code[1].replace("run_study(study)", calm), space)
    assert len(space["results"].trials) == 1
    lightning = script_lightning
    space |= {"module": lightning.net(), "datamodule": lightning.Data()}
    space["trainer"] = lightning.trainer(precision="bf16-mixed")
    exec(code[2].replace("run_study(study)", calm), space)
    assert len(space["results"].trials) == 1
    assert space["study"].study.baseline == "torch.autocast.bfloat16"
