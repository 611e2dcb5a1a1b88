"""A study with a target trains, prices and shows what its exported files run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from policysearch.api import load_results, load_study
from policysearch.cli import main
from policysearch.export.targets import target_named
from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, mlp, resnet
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy_file import read_policy
from policysearch.policy.presets import preset
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.space.target import as_run, differences, kept_wide, left_out, offered
from policysearch.study.journal.storage import exclusive
from policysearch.study.results.results import Results
from policysearch.values import InputError
from tests.studies import write_study

pytestmark = pytest.mark.usefixtures("one_process")
MODEL = lenet5()
TARGET = 'name = "tiny"', 'name = "tiny"\ntarget = "torch"'
FLOAT8 = 'ladder = ["bfloat16", "mindspore.O0", "apex.O3"]', 'ladder = ["te.current"]'


def run(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Run the tiny study in a folder; return how a command names it."""
    study = write_study(folder, *changes)
    places = [str(study), "--storage", str(folder / "tiny.journal")]
    assert main(["run", *places, "--processes", "1", "--out", str(folder)]) == 0
    return places


def test_only_formats_of_the_target_are_offered() -> None:
    section = SpaceSection(("float32", "bfloat16", "float8_e4m3fn"), scalings=("current", "none"))
    there = offered(section, MODEL, "torch")
    assert there.formats == ("float32", "bfloat16") and there.scalings == ()
    assert offered(section, MODEL, None) is section
    wide = mlp((32, 48, 10))
    narrow = offered(section, wide, "torch")
    assert narrow.formats == section.formats and narrow.scalings == ("current",)
    (said,) = left_out(section, MODEL, "torch")
    assert said.startswith("float8_e4m3fn is not searched, for no layer runs in it: layer fc1: ")
    assert "multiples of 16, and its weight is 120 x 400" in said and said.endswith("(3 such)")
    assert left_out(section, wide, "torch") == left_out(section, MODEL, None) == []
    with pytest.raises(InputError, match=r"^space.formats: \['float8_e4m3fn'\] with study.target"):
        offered(SpaceSection(("float8_e4m3fn",)), MODEL, "torch")


def test_presets_that_train_alike_are_trained_once() -> None:
    """Without float8 torchao's is autocast's, but for batch norms: one of both where none is."""
    both = ("torch.autocast.bfloat16", "torchao.tensorwise")
    section = SpaceSection(("float32", "bfloat16"), base=both[0], ladder=both)
    for model, alike in ((MODEL, True), (resnet((1, 8, 8), 4, (4,)), False)):
        known = [names for _, names in make_space(section, model, (), "torch").ladder().values()]
        assert (both in known) is alike and (both[1:] in known) is not alike
    assert ("torchao.tensorwise",) in [
        names for _, names in make_space(section, mlp((32, 48, 10)), (), "torch").ladder().values()
    ]


def test_differences_are_what_the_target_changes() -> None:
    low = preset("bfloat16", MODEL.layer_names)
    assert differences(low, MODEL, "torch") == ()
    narrow = preset("te.current", MODEL.layer_names)
    assert any("float8_e4m3fn" in line for line in differences(narrow, MODEL, "torch"))
    assert differences(as_run(narrow, MODEL, "torch"), MODEL, "torch") == ()
    assert as_run(narrow, MODEL, None) is narrow
    stored = preset("apex.O3", MODEL.layer_names)
    scaled = replace(stored, loss_scale=LossScale("fixed", 1024.0))
    assert not any("loss_scale" in line for line in differences(stored, MODEL, "torch"))
    assert any("GradScaler refuses" in line for line in differences(scaled, MODEL, "torch"))


def rows_of(space: Space) -> dict[str, set[tuple[int, ...]]]:
    """Return the rows of the searcher by digest, of every policy of the space."""
    effective, choices = Encoding(space), space.choices()
    rows: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for values in product(*choices.values()):
        params = dict(zip(choices, values, strict=True))
        policy = space.policy(params)
        assert space.model is not None
        assert as_run(policy, space.model, space.target) == policy
        rows[policy.digest].add(effective.row(params))
    return rows


def test_a_loss_scale_is_offered_where_the_target_has_one() -> None:
    """Stored in float16 all loss scales are one policy, and one row of the searcher."""
    section = SpaceSection(
        ("bfloat16", "float16"),
        base="torch.autocast.bfloat16",
        master_weights=(True, False),
        loss_scales=("none", "fixed", "dynamic"),
        log2_scale=(7, 8),
    )
    counts = {}
    for target in ("torch", None):
        rows = rows_of(make_space(section, mlp((64, 16, 10)), target=target))
        assert all(len(found) == 1 for found in rows.values())
        assert len({row for found in rows.values() for row in found}) == len(rows)
        counts[target] = len(rows)
    # bfloat16 throughout and, with masters or not, three policies with a float16 layer, scaled
    # in five ways: of those without masters the target has one each
    assert counts == {None: 2 + 2 * 3 * 5, "torch": 2 + 3 * 5 + 3}


def test_formats_that_the_target_runs_alike_are_one_row() -> None:
    """Sides of 10 keep the last layer from float8: there it is the format of its result.

    And no format changes during training.
    """
    section = SpaceSection(
        ("bfloat16", "float8_e4m3fn"),
        base="torch.autocast.bfloat16",
        master_weights=(True, False),
        scalings=("current",),
        phase_points=(0.5,),
        phase_formats=("same", "float32"),
    )
    rows = rows_of(make_space(section, mlp((64, 16, 32, 10)), target="torch", steps=20))
    assert all(len(found) == 1 for found in rows.values())
    assert len({row for found in rows.values() for row in found}) == len(rows) == 5


def test_every_policy_of_a_study_with_a_target_is_what_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = run(tmp_path, TARGET, FLOAT8)
    out = str(tmp_path / "out")
    for number in range(6):
        options = ["--trial", str(number), "--out", out, "--strict"]
        assert main(["export", *places, *options]) == 0, capsys.readouterr().err
        model = model_of(places[0])
        policy = read_policy(Path(out) / "tiny-policy.json")
        assert target_named("torch").runs(policy, model) == policy
        assert differences(policy, model, "torch") == ()
    capsys.readouterr()
    assert main(["show", *places, "--policy", "preset:te.current"]) == 0  # the ladder's, as it runs
    page = capsys.readouterr().out.splitlines()
    assert "float8" not in "".join(x for x in page if "does not compute it in" not in x)


def test_a_pick_stands_beside_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "torch.autocast.bfloat16"
    places = run(tmp_path, TARGET, ('target = "torch"', f'target = "torch"\nbaseline = "{base}"'))
    trials = load_results(load_study(places[0]), places[2]).trials
    number = next(trial.number for trial in trials if base in trial.presets)
    capsys.readouterr()
    for worse in (False, True):
        if worse:
            monkeypatch.setattr(
                Results, "point", lambda _, trial: (1.0 + (trial.number != number),) * 3
            )
        assert main(["export", *places, "--trial", "0", "--out", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        assert f"trial {number}, {base} " in said and "loss gap  speedup  memory" in said
        assert (f"{base} is better on all axes" in said) == worse
    assert main(["export", *places, "--trial", str(number), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "loss gap  speedup" not in said
    assert said.endswith(
        "nothing is gained here: modeled no faster and no smaller than "
        f"{base}, which the study says you run today\n"
    )
    monkeypatch.undo()
    command = ["--study", places[0], "--out", str(tmp_path / "out"), "--trust"]
    none = list[bool]()
    for trial in trials:  # as the two rows of numbers say
        assert main(["export", *places, "--trial", str(trial.number), "--out", command[3]]) == 0
        page = capsys.readouterr().out
        own, today = ((t.cost.speedup, t.cost.memory_ratio) for t in (trial, trials[number]))
        none.append(own[0] <= today[0] and own[1] >= today[1])
        assert ("is gained" in page or "is better on all axes" in page) == none[-1]
    assert {*none} == {True, False}
    for name, gains in (("float32", True), (base, False)):  # float32 is faster: the net is tiny
        assert main(["export", f"preset:{name}", *command]) == 0
        assert ("nothing is gained here" in capsys.readouterr().out) != gains


def model_of(study: str) -> Model:
    task = load_study(study).task
    return task.build_model(task.load_dataset())


def test_an_export_of_what_runs_otherwise_shows_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = run(tmp_path, FLOAT8)
    capsys.readouterr()
    main(["show", *places, "--csv"])
    rows = capsys.readouterr().out.splitlines()
    number = next(row.split(",")[0] for row in rows if "te.current" in row)
    assert main(["export", *places, "--trial", number, "--out", str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out
    assert "\nas torch runs it:\ntrial " in said and said.count("modeled speedup") == 3
    assert said.count(" is new in the study: it was trained now to know its gap\n") == 1
    assert main(["export", *places, "--trial", number, "--out", str(tmp_path / "a")]) == 0
    assert "is new in the study" not in capsys.readouterr().out
    folder = tmp_path / "b"
    assert main(["export", *places, "--trial", number, "--out", str(folder), "--strict"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("policysearch: --strict: layer ") and error.count("\n") == 1
    assert not folder.exists()
    with exclusive(Path(places[2])):  # as by a run under way
        assert main(["export", *places, "--trial", number, "--out", str(folder)]) == 2
    refused = capsys.readouterr()
    assert "in use by another run" in refused.err
    written = {f"wrote {path}" for path in folder.iterdir()}
    assert written and written <= set(refused.out.splitlines())


def test_an_unknown_target_of_a_study_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, ('name = "tiny"', 'name = "tiny"\ntarget = "cobol"'))
    assert main(["run", str(study), "--storage", str(tmp_path / "j")]) == 2
    assert "study.target: 'cobol'; expected one of apex, cann, deepspeed" in capsys.readouterr().err


def test_layers_that_float8_cannot_take_are_named_with_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = mlp((64, 48, 40, 10))
    asked = preset("te.current", model.layer_names)
    lines = kept_wide(asked, model, "torch")
    assert [line.partition(":")[0] for line in lines] == ["layer fc2", "layer fc3"]
    assert all("torchao wants multiples of 16, and its weight is" in line for line in lines)
    # of what runs the same is known: fc1 is left in float8
    assert kept_wide(as_run(asked, model, "torch"), model, "torch") == lines
    assert kept_wide(asked, model, None) == ()
    assert kept_wide(preset("bfloat16", model.layer_names), model, "torch") == ()
    fits = mlp((64, 48, 32))
    assert kept_wide(preset("te.current", fits.layer_names), fits, "torch") == ()
    places = run(tmp_path, TARGET, FLOAT8)
    trials = load_results(load_study(places[0]), places[2]).trials
    number = str(next(trial.number for trial in trials if "te.current" in trial.presets))
    capsys.readouterr()
    for command in (["show"], ["export", "--out", str(tmp_path / "out")]):
        assert main([command[0], *places, *command[1:], "--trial", number]) == 0
        assert "torchao wants multiples of 16, and its weight is" in capsys.readouterr().out
    assert main(["explain", "preset:te.current", "--study", places[0]]) == 0
    assert "torchao wants multiples of 16, and its weight is" in capsys.readouterr().err
