"""Rules over the graph that a study names: what they change and refuse, what depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.nn.model import Model
from policysearch.nn.models import lenet5
from policysearch.ops.activations import tanh
from policysearch.policy.presets import preset
from policysearch.rewrite.clipping import clip_by_norm
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.format_rules import LayerMatch
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import chain, node
from policysearch.rewrite.rules import RuledModel, rule
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train.step import trace_forward, trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError
from tests.studies import write_study

RULES = """
from policysearch.ops.activations import relu_or_tanh
from policysearch.rewrite.clipping import clip_by_norm
from policysearch.rewrite.patterns import chain, node
from policysearch.rewrite.rules import rule


@rule(chain(node("act", op="tanh")))
def to_relu(edit, match):
    act = match["act"]
    edit.redirect(act, edit.emit(relu_or_tanh, *edit.inputs(act), at=act))


clipped = clip_by_norm(0.5, layer="fc.*", per="layer")


@rule(chain(node(op="softmax")))
def missing(edit, match):
    raise AssertionError


@rule(chain(node(op="tanh")))
def broken(edit, match):
    return {}["no such key"]


def plain(match):
    return None
""".replace("activations import relu_or_tanh", "elementwise import relu as relu_or_tanh")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net_rules.py").write_text(RULES, encoding="utf-8")
    yield tmp_path


TASK = Task(model="mlp", widths=(8,), activation="tanh", data="digits", steps=4, tail_steps=2)


def ruled(*names: str) -> Task:
    return replace(TASK, graph_rules=tuple(f"net_rules.py:{name}" for name in names))


def test_a_ruled_task_trains_the_changed_net(folder: Path) -> None:
    """tanh made relu is the net built with relu, which has other names alone."""
    changed = ruled("to_relu")
    built = replace(TASK, activation="relu")
    losses = []
    for task in (changed, built, TASK):
        model = task.build_model(task.load_dataset())
        policy = preset("mindspore.O2", model.layer_names)
        losses.append(train(task, policy, 0, dataset=task.load_dataset()).losses)
    np.testing.assert_array_equal(losses[0], losses[1])
    assert (losses[0] != losses[2]).any()


def test_a_rule_of_the_step_is_in_every_step_of_the_task(folder: Path) -> None:
    task = ruled("clipped")
    model = task.build_model(task.load_dataset())
    step = task.tracing(model, 4).step_graph(preset("mindspore.O2", model.layer_names))
    assert [n.op.name for n in step.nodes].count("clip") == 4
    assert [n.op.name for n in step.nodes].count("global_norm") == 2
    low = preset("float32", model.layer_names)
    data = task.load_dataset()
    fast, slow = (
        train(replace(each, learning_rate=0.5), low, 0, dataset=data) for each in (task, TASK)
    )
    assert (fast.losses != slow.losses).any()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "net_rules.py:missing: rule 'missing': matches no node; expected a match"),
        (
            "broken",
            r"net_rules.py:broken: rule 'broken': node \[\d+\] tanh of layer 'tanh1': KeyError: "
            "'no such key'; expected it to run",
        ),
        ("plain", "net_rules.py: no rule 'plain'; expected one of to_relu, clipped"),
        ("nowhere", "no rule 'nowhere'; expected one of to_relu, clipped, missing, broken"),
    ],
)
def test_an_error_names_file_rule_and_node(folder: Path, name: str, said: str) -> None:
    task = ruled(name)
    with pytest.raises(InputError, match=said):
        task.build_model(task.load_dataset())
    with pytest.raises(InputError, match=r"graph_rules: .*'to_relu'; expected file.py:rule"):
        replace(TASK, graph_rules=("to_relu",)).build_model(TASK.load_dataset())


def test_a_study_names_its_rules_and_its_storage_knows_them(folder: Path) -> None:
    path = write_study(folder)
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("[task]", '[task]\ngraph_rules = ["net_rules.py:clipped"]', 1),
        encoding="utf-8",
    )
    spec = load_spec(path)
    assert spec.task.graph_rules == ("net_rules.py:clipped",)
    spec = replace(spec, study=replace(spec.study, trials=1))
    run_study(spec, folder / "one.journal", processes=0)
    without = replace(spec, task=replace(spec.task, graph_rules=()))
    with pytest.raises(InputError, match="graph_rules"):
        run_study(without, folder / "one.journal", processes=0)
    assert "graph_rules" not in without.task.to_plain()


def one(limit: float) -> Model:
    @rule(chain(node("act", op="relu")))
    def same(edit: Editor, match: Match) -> None:
        edit.redirect(match["act"], edit.emit(tanh, *edit.inputs(match["act"]), at=match["act"]))

    return RuledModel(lenet5(), (same, clip_by_norm(limit)))


def other() -> Model:
    @rule(chain(node("act", op="relu")))
    def same(edit: Editor, match: Match) -> None:
        edit.redirect(match["act"], match["act"].inputs[0])

    return RuledModel(lenet5(), (same, clip_by_norm(1.0)))


def test_another_function_or_another_number_is_another_net() -> None:
    assert one(1.0).fingerprint == one(1.0).fingerprint
    assert one(1.0).fingerprint != other().fingerprint
    assert one(1.0).fingerprint != one(2.0).fingerprint


@pytest.mark.torch
def test_layers_of_an_imported_net_are_matched_by_the_class_of_their_module() -> None:
    torch: Any = pytest.importorskip("torch")
    from policysearch.importers.torch_export import from_torch

    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3),
        torch.nn.BatchNorm2d(2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(72, 10),
    )
    model = from_torch(net, torch.zeros(2, 1, 8, 8))
    assert model.layer_types == {
        "0": "Conv2d",
        "1": "BatchNorm2d",
        "2": "ReLU",
        "4": "Linear",
    }
    graph = trace_forward(model, 2)
    types = ("Conv2d", "Linear")
    assert LayerMatch(layer_type=types).layers(graph, model) == ("0", "4")
    step = trace_step(
        RuledModel(model, (clip_by_norm(1.0, layer="4"),)), "", TASK.build_optimizer(), 2
    )
    assert sum(n.op.name == "clip" for n in step.nodes) == 2
