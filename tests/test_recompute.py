"""Recomputation of blocks: the same values, less memory, and the forward time once more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from policysearch.api import load_results, load_study, run_study
from policysearch.cli import main
from policysearch.cost.devices import DEVICES
from policysearch.cost.measured import time_on
from policysearch.cost.memory import step_memory
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import StepTime
from policysearch.emulator.reference import Reference
from policysearch.graph import Graph
from policysearch.layout import in_storage_order
from policysearch.objective.objective import Objective
from policysearch.ops.source import TARGETS
from policysearch.policy.presets import preset
from policysearch.report.table import batches
from policysearch.rewrite.recompute import layers_of_blocks, recomputed
from policysearch.study.specification import objective_of, spec_from_text
from policysearch.train.tasks import Task
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

NAMES = ("fc1", "relu1", "fc2", "relu2", "block1.q", "block1.k", "head")


def time_of(graph: Graph) -> StepTime:
    return time_on(graph, DEVICES["A100-SXM4-40GB"], STACKS["torch.eager"])


@pytest.fixture(scope="module", params=["float32", "torch.autocast.float16", "apex.O3"])
def objective(request: pytest.FixtureRequest) -> tuple[Objective, Graph]:
    task = Task(model="mlp", data="digits", widths=(256,) * 8)
    made = Objective(task, "A100-SXM4-40GB", "torch.eager", 8192)
    return made, made.step_graph(preset(request.param, made.model.layer_names))


def halves(objective: Objective) -> tuple[tuple[str, ...], ...]:
    names = objective.model.layer_names
    middle = len(names) // 2
    blocks = (f"{names[0]}..{names[middle - 1]}", f"{names[middle]}..{names[-1]}")
    return layers_of_blocks(names, blocks)


def test_memory_falls_and_time_rises_by_the_forward_that_runs_again(
    objective: tuple[Objective, Graph],
) -> None:
    """The second kernels are those of the forward pass, one by one, and nothing else changes."""
    made, plain = objective
    again = recomputed(plain, halves(made))
    before, after = time_of(plain), time_of(again)
    assert step_memory(again).peak_bytes < 0.8 * step_memory(plain).peak_bytes
    forward = [(k.layer, k.op, k.format, k.seconds) for k in before.kernels if k.role == "fprop"]
    left = [(k.layer, k.op, k.format, k.seconds) for k in before.kernels]
    extra = []
    for k in after.kernels:
        key = (k.layer, k.op, k.format, k.seconds)
        if key in left:
            left.remove(key)
        else:
            extra.append(key)
    assert not left and len(extra) > 8
    assert all(key in forward for key in extra)
    gained = sum(seconds for *_, seconds in extra)
    assert after.kernel_seconds - before.kernel_seconds == pytest.approx(gained)
    whole = sum(seconds for *_, seconds in forward)
    assert 0.6 * whole < gained < whole  # what nothing in backward reads is not made again


def test_no_value_changes() -> None:
    """The emulator runs both graphs: equal bits of the loss, gradients and parameters."""
    task = Task(model="mlp", data="digits", widths=(16, 16))
    made = Objective(task, "A100-SXM4-40GB", "torch.eager", 4)
    plain = made.step_graph(preset("torch.autocast.float16", made.model.layer_names))
    again = recomputed(plain, layers_of_blocks(made.model.layer_names, ["fc1..relu2"]))
    assert len(again.nodes) > len(plain.nodes)
    rng = np.random.default_rng(0)
    fed = {
        node.name: in_storage_order(
            np.zeros(node.shape, np.float32)
            if node.name == TARGETS
            else rng.standard_normal(node.shape).astype(np.float32)
        )
        for node in plain.nodes
        if node.op.kind == "source"
    }
    first, second = (Reference(graph, 0, fed, None) for graph in (plain, again))
    for step in (first, second):
        step.forward_backward()
    assert plain.outputs and [name for name, _ in plain.outputs] == [n for n, _ in again.outputs]
    for name, _ in plain.outputs:
        np.testing.assert_array_equal(first.value(name), second.value(name))
    assert np.any(first.value("grad:fc1.weight"))


def test_what_leaves_a_block_is_kept() -> None:
    task = Task(model="mlp", data="digits", widths=(64, 64))
    made = Objective(task, "A100-SXM4-40GB", "torch.eager", 128)
    plain = made.step_graph(made.float32)
    again = recomputed(plain, [("fc2",)])
    assert again == plain  # its output is what backward reads, and the next layer: kept


def test_blocks_by_name() -> None:
    blocks = layers_of_blocks(NAMES, ["block1", "fc1..relu2", "head"])
    assert blocks == (("block1.q", "block1.k"), ("fc1", "relu1", "fc2", "relu2"), ("head",))


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (["fc9"], "recompute: 'fc9'; expected a layer"),
        (["relu2..fc1"], "recompute: 'relu2..fc1'; expected"),
        (["fc1..relu1", "relu1"], "recompute: 'relu1' holds 'relu1' a second time"),
    ],
)
def test_blocks_that_are_none(blocks: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        layers_of_blocks(NAMES, blocks)


STUDY = """
[study]
name = "again"

[task]
model = "mlp"
data = "digits"
widths = [64, 64]
steps = 4
tail_steps = 2

[cost]
device = "A100-SXM4-40GB"
stack = "torch.eager"
recompute = ["fc1..relu2"]

[space]
formats = ["bfloat16"]
"""


def test_a_study_prices_its_steps_with_the_blocks_computed_again() -> None:
    spec = spec_from_text(STUDY, "again.toml")
    made, plain = objective_of(spec), Objective(spec.task, "A100-SXM4-40GB", "torch.eager")
    policy = preset("bfloat16", made.model.layer_names)
    layers = layers_of_blocks(made.model.layer_names, ["fc1..relu2"])
    assert made.step_graph(policy) == recomputed(plain.step_graph(policy), layers)
    assert made.float32_price.time.kernel_seconds > plain.float32_price.time.kernel_seconds
    assert "fc1..relu2 computed again in backward" in batches(spec)
    wrong = spec_from_text(STUDY.replace("fc1..relu2", "fc7"), "again.toml")
    with pytest.raises(InputError, match="recompute: 'fc7'"):
        objective_of(wrong).price(policy)


def test_a_study_that_names_other_blocks_is_priced_anew(tmp_path: Path) -> None:
    """Results trained before are shown at the price of what the study says now."""
    path = write_study(
        tmp_path,
        ('model = "mlp"', 'model = "lenet5"'),
        ('activation = "tanh"\nwidths = [8]\ndata = "digits"\n', ""),
        ('ops = ["tanh"]\n', ""),
    )
    journal = tmp_path / "tiny.journal"
    with replaced_training():
        before = run_study(load_study(path), journal, processes=0)
    again = path.read_text(encoding="utf-8").replace(
        "batch_size = 4096", 'recompute = ["conv1..pool1"]\nbatch_size = 4096'
    )
    path.write_text(again, encoding="utf-8")
    after = load_results(load_study(path), journal)
    objective = objective_of(after.spec)
    assert len(after.trials) == len(before.trials) > 2
    for old, new in zip(before.trials, after.trials, strict=True):
        assert new.cost == objective.price(new.policy)
        assert new.cost.step_seconds > old.cost.step_seconds
    path.write_text(again.replace("pool1", "pool9"), encoding="utf-8")
    with pytest.raises(InputError, match=r"recompute: 'conv1\.\.pool9'; expected a layer"):
        load_results(load_study(path), journal)


def test_profile_takes_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    where = ["profile", "preset:float32", "--model", "lenet5", "--batch", "4096"]
    launches = []
    for options in ([], ["--recompute", "conv1..pool1", "conv2..pool2"]):
        assert main([*where, *options]) == 0
        told = capsys.readouterr().out.partition("time to launch ")[2]
        launches.append(int(told.split()[0]))
    assert launches[1] > launches[0]
    assert main([*where, "--recompute", "conv9"]) == 2
    assert "recompute: 'conv9'; expected a layer" in capsys.readouterr().err
