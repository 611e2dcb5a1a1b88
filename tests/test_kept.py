"""The graph kept beside a journal: the model's own on any batch, and all that a view needs."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysearch.cli import main
from policysearch.commands.trust import VARIABLE
from policysearch.nn.kept import kept_model, model_from_kept
from policysearch.nn.models import MODELS
from policysearch.objective.objective import Objective
from policysearch.ops.elementwise import relu
from policysearch.policy.presets import preset
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import chain, node
from policysearch.rewrite.rules import RuledModel, rule
from policysearch.study.kept import graph_place, load_to_view, sealed
from policysearch.study.specification import load_spec, objective_of
from policysearch.train import user_code
from policysearch.train.tasks import Task
from tests.studies import write_study

NET = """
from policysearch.data.datasets import load_dataset
from policysearch.nn.models import MODELS

def model():
    return MODELS["mlp"]((1, 8, 8), 10, "tanh", (8,))

def data():
    return load_dataset("digits")

def right(outputs, labels):
    return float((outputs.argmax(1) == labels).mean())
"""
OWN = (
    ('model = "mlp"\nactivation = "tanh"\nwidths = [8]', 'model = "net.py:model"'),
    ('data = "digits"\n', 'data = "net.py:data"\n'),
    ('ops = ["tanh"]\n', ""),
    ("trials = 6", "trials = 5"),
)
MINE = 'open("it-ran", "w").close()\nraise RuntimeError("it ran")\n'
VIEWS = (
    "show tiny.toml",
    "show tiny.toml --trial 1",
    "show tiny.toml --csv",
    "show tiny.toml --policy preset:bfloat16",
    "noise tiny.toml",
    "plot tiny.toml",
    "report tiny.toml",
    "why 4 --study tiny.toml",
    "explain preset:bfloat16 --study tiny.toml",
    "explain preset:bfloat16 --study tiny.toml --diff",
    "profile preset:bfloat16 --study tiny.toml",
    "rules preset:bfloat16 --study tiny.toml",
    "repair tiny.toml",
)

TASKS = {
    "lenet5": Task(),
    "mlp": Task(model="mlp", data="digits", widths=(64, 64)),
    "gpt": Task(model="gpt", activation="gelu", data="sums"),
    "transformer": Task(model="transformer", activation="gelu"),
    "resnet": Task(model="resnet", widths=(8, 8)),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_kept_pass_gives_the_step_of_the_model_on_other_batches(name: str) -> None:
    task = TASKS[name]
    model = task.build_model(task.load_dataset())
    plain = kept_model(model, name)
    assert plain is not None
    kept = model_from_kept(json.loads(json.dumps(plain)))
    for batch in (2, 5, 96):
        policy = preset("mindspore.O2", model.layer_names)
        one, other = (task.tracing(each, batch).step_graph(policy) for each in (model, kept))
        assert one == other
        assert len(one.nodes) > 2 * len(model.layer_names)
    with pytest.raises(Exception, match="only the graph was kept"):
        kept.init(None)  # type: ignore[arg-type]


def test_what_plain_data_cannot_say_is_not_kept() -> None:
    model = MODELS["mlp"]((1, 8, 8), 10, "relu", (8,))
    assert kept_model(model, "mlp") is not None

    @rule(chain(node("act", op="relu")))
    def own_op(edit: Editor, match: Match) -> None:
        act = match["act"]
        edit.redirect(act, edit.emit(replace(relu, name="mine"), *edit.inputs(act), at=act))

    assert kept_model(RuledModel(model, (own_op,)), "mlp") is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_process: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "net.py").write_text(NET)
    user_code._module.cache_clear()
    return tmp_path


def hide(folder: Path) -> None:
    """Put a file that must not run in the place of the net."""
    (folder / "net.py").write_text(MINE)
    user_code._module.cache_clear()


def test_views_of_a_finished_study_run_no_code_and_show_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(folder, *OWN)
    assert main(["run", "tiny.toml", "--trust"]) == 0
    assert "is trusted" in capsys.readouterr().err
    place = graph_place(folder / "results" / "tiny.journal")
    assert place.stat().st_size < 2_000
    aside = place.rename(folder / "aside")
    before, after = [], []
    for view in VIEWS:
        assert main(view.split()) == 0, capsys.readouterr().err
        before.append(capsys.readouterr().out)
    aside.rename(place)
    hide(folder)
    for view in VIEWS:
        assert main(view.split()) == 0, capsys.readouterr().err
        after.append(capsys.readouterr().out)
    assert before == after
    assert all(before)
    assert not (folder / "it-ran").exists()
    spec = load_to_view(study)
    assert spec.task.to_plain() == load_spec(study).task.to_plain()


def _plain(place: Path) -> Any:
    """Return what a kept graph says, without its seal."""
    return json.loads(gzip.decompress(place.read_bytes()).partition(b"\n")[2])


def test_a_kept_graph_of_another_task_or_a_damaged_one_is_not_used(folder: Path) -> None:
    study = write_study(folder, *OWN)
    assert main(["run", "tiny.toml", "--trust"]) == 0
    place = graph_place(folder / "results" / "tiny.journal")
    whole = place.read_bytes()
    endless = _plain(place)
    endless["data"]["labels"][0] = [10**15]  # which no machine can make
    by_hand = gzip.compress(gzip.decompress(whole).replace(b"fc1", b"fc9"))
    assert b"fc9" in gzip.decompress(by_hand)
    spoilt = (b"", whole[:-9], whole[:40] + b"x" + whole[41:], gzip.compress(b"{}"), by_hand)
    for damaged in (*spoilt, sealed(endless)):
        place.write_bytes(damaged)
        assert load_to_view(study).task == load_spec(study).task
    place.write_bytes(whole)
    assert load_to_view(study).task != load_spec(study).task
    study.write_text(study.read_text().replace("learning_rate = 0.1", "learning_rate = 0.2"))
    assert load_to_view(study).task == load_spec(study).task


@pytest.mark.parametrize(
    ("field", "view"),
    [("name", "explain preset:bfloat16 --study tiny.toml"), ("attribute", "report tiny.toml")],
)
def test_a_kept_graph_that_someone_changed_gets_no_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str], field: str, view: str
) -> None:
    """Neither a name that a terminal acts on nor a gradient of another shape gets through."""
    write_study(folder, *OWN)
    assert main(["run", "tiny.toml", "--trust"]) == 0
    place = graph_place(folder / "results" / "tiny.journal")
    plain = _plain(place)
    nodes = plain["model"]["kept"]["training"]["nodes"]
    product = next(node for node in nodes if node[0] == "matmul")
    if field == "name":
        product[4] = "a\x1b[2J\nINJECTED"
    else:
        assert product[6][0][0] == "transpose_b"
        product[6][0][0] = "no such attribute"
    place.write_bytes(sealed(plain))
    capsys.readouterr()
    ended = main(view.split())
    told = capsys.readouterr()
    if field == "name":
        assert ended == 2 and not told.out
        assert told.err.count("\n") == 1 and "\x1b" not in told.err
    else:
        assert ended == 0  # by the net's own file, which is trusted, without what was kept


def test_a_priced_net_of_ones_own_is_kept_too(folder: Path) -> None:
    text = NET + "\ndef wide():\n    return MODELS['mlp']((1, 8, 8), 10, 'tanh', (64,))\n"
    (folder / "net.py").write_text(text)
    more = ('stack = "torch.compile"\n', 'stack = "torch.compile"\nnet.model = "net.py:wide"\n')
    study = write_study(folder, *OWN, more)
    assert main(["run", "tiny.toml", "--trust"]) == 0
    spec = load_spec(study)
    policy = preset("bfloat16", objective_of(spec).model.layer_names)
    price = objective_of(spec).price(policy)
    alone = Objective(spec.task, "H100-SXM5", "torch.compile", 4096).price(policy)
    kept = load_to_view(study)
    hide(folder)
    assert objective_of(kept).price(policy) == price
    assert price != alone


def test_a_study_of_the_packages_own_net_and_data_keeps_nothing(folder: Path) -> None:
    write_study(folder, ("trials = 6", "trials = 2"))
    assert main(["run", "tiny.toml"]) == 0
    assert not graph_place(folder / "results" / "tiny.journal").exists()
