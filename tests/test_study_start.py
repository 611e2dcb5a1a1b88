"""What a study starts from: its own uniform formats, today's setting, scaled FP8, one batch."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.nn.models import lenet5
from policysearch.objective.objective import Objective
from policysearch.policy.presets import PRESETS, TF32, preset
from policysearch.report.plots import VIEWS, figure
from policysearch.report.table import caption
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.study.opening import load_results
from policysearch.study.proposer import lists_sorted
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec, spec_from_data
from policysearch.study.study import run_study
from policysearch.train.training import train
from policysearch.values import InputError
from tests.studies import TINY, replaced_training, write_study

BASELINE = "torch.autocast.bfloat16"
SHIPPED = sorted((Path(__file__).parents[1] / "studies").glob("*.toml"))
FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3fn")
CHANGES = (
    ("widths = [8]", "widths = [512]"),
    ("trials = 6", f'trials = 6\nbaseline = "{BASELINE}"'),
    ('["bfloat16", "mindspore.O0", "apex.O3"]', '["uniform"]'),
    ("[space]", '[space]\naccumulators = ["float32", "chunked:32:float16"]'),
)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    spec = load_spec(write_study(folder, *CHANGES))
    with replaced_training():
        run_study(spec, folder / "x.journal", processes=0)
    return folder / "x.journal"


@pytest.fixture(scope="module")
def results(journal: Path) -> Results:
    return load_results(load_spec(journal.with_name("tiny.toml")), journal)


def changed(**tables: dict[str, object]) -> StudySpec:
    data = tomllib.loads(TINY)
    for table, keys in tables.items():
        data[table] |= keys
    return spec_from_data(data, "tiny.toml")


@pytest.mark.parametrize("masters", [(True,), (True, False)])
def test_the_ladder_is_made_from_the_options_of_the_study(masters: tuple[bool, ...]) -> None:
    section = SpaceSection(FORMATS, base=BASELINE, master_weights=masters)
    space = make_space(section, lenet5())
    tried = [policy for policy, _ in space.ladder().values()]
    assert tried[0] == preset("float32", space.layers)
    wanted = {(name, kept) for name in FORMATS[1:] for kept in masters}
    found = set()
    for policy in tried[1:]:
        (compute,) = {layer.compute for _, layer in policy.layers}
        found.add((compute, policy.master_weights))
        stored = {layer.param for _, layer in policy.layers}
        assert (stored == {"float32"}) == policy.master_weights
    assert found == wanted and len(tried) == 1 + len(wanted)


def test_presets_stay_possible_and_a_policy_has_every_name_it_goes_by() -> None:
    section = SpaceSection(FORMATS, base=BASELINE, ladder=("apex.O3", "uniform", "mindspore.O0"))
    ladder = make_space(section, lenet5()).ladder(BASELINE)
    names = [known_as for _, known_as in ladder.values()]
    # The base on every layer is the baseline itself, and no second trial.
    assert names == [("float32", "mindspore.O0"), (BASELINE,), ("apex.O3",), (), ()]


def test_the_baseline_is_trained_in_every_study_that_names_one(results: Results) -> None:
    known = [name for trial in results.trials for name in trial.presets]
    assert known == ["float32", BASELINE, "torch.tf32"]
    with pytest.raises(
        InputError, match=r"study\.baseline: 'amp'; did you mean .* expected one of float32"
    ):
        changed(study={"baseline": "amp"})


def test_eight_bits_are_scaled_unless_the_study_says_otherwise() -> None:
    found = {}
    for given in ((), ("none",), ("current",), ("delayed", "none")):
        section = SpaceSection(("float8_e4m3fn", "bfloat16"), base=BASELINE, scalings=given)
        narrow = make_space(section, lenet5()).uniform()[-1]
        assert {layer.compute for _, layer in narrow.layers} == {"float8_e4m3fn"}
        found[given] = narrow.scaling.recipe
    assert found[()] == "delayed"
    assert all(recipe == given[0] for given, recipe in found.items() if given)
    # What the base says holds before what is usual.
    base = make_space(SpaceSection(("float8_e4m3fn",), base="te.mxfp8"), lenet5())
    assert base.uniform()[0].scaling == base.base.scaling != preset(BASELINE, ["a"]).scaling


def test_scaled_operands_underflow_far_less() -> None:
    lenet = {"model": "lenet5", "data": "digits32", "widths": [], "steps": 41}
    task = changed(task=lenet).task
    data = task.load_dataset()
    model = task.build_model(data)
    counts = []
    for given in ((), ("none",)):
        section = SpaceSection(("float8_e4m3fn",), base=BASELINE, scalings=given)
        run = train(task, make_space(section, model).uniform()[0], 0, dataset=data)
        counts.append(sum(count for _, count in run.underflows))
    # Of steps 0, 20 and 40, delayed scaling has no amax in the first and a large one later.
    assert 0 < 2 * counts[0] < counts[1]


def test_speedups_are_ratios_of_step_times(results: Results) -> None:
    """Against prices asked for anew, reference by reference."""
    cost = results.spec.cost
    objective = Objective(results.spec.task, cost.device, cost.stack, cost.batch_size)
    seconds = {
        name: objective.price(preset(name, objective.model.layer_names)).step_seconds
        for name in ("float32", "torch.tf32", BASELINE)
    }
    assert len(set(seconds.values())) == 3
    for trial in results.trials:
        own = objective.price(trial.policy)
        speedups = results.speedups(trial)
        assert [found.over for found in speedups] == list(seconds)
        for found in speedups:
            assert found.value == pytest.approx(seconds[found.over] / own.step_seconds)
            itself = found.over in trial.presets
            assert (found.low == found.value == found.high == 1.0) == itself
            assert itself or found.low < found.value < found.high
        first = speedups[0]
        assert (first.value, first.low, first.high) == pytest.approx(
            (own.speedup, own.speedup_low, own.speedup_high)
        )
    own_seconds = {trial.number: trial.cost.step_seconds for trial in results.trials}
    for row in results.rows():
        over = [row.modeled_speedup, row.speedup_over_tf32, row.speedup_over_baseline]
        assert over == pytest.approx([s / own_seconds[row.trial] for s in seconds.values()])


def test_reading_a_journal_prices_nothing_anew(
    journal: Path, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("priced anew")

    monkeypatch.setattr(Objective, "price", refuse)
    assert load_results(results.spec, journal).references == results.references


def test_a_device_without_tf32_is_not_compared_with_it(tmp_path: Path) -> None:
    priced = 'device = "V100-SXM2"\nstack = "torch.compile"\n'
    path = write_study(
        tmp_path,
        ("trials = 6", 'trials = 2\nbaseline = "torch.autocast.float16"'),
        ('device = "H100-SXM5"\nstack = "torch.compile"\n', priced),
        ('batch_size = 4096\nbatch_size_reason = "small kernels"\n', ""),
    )
    spec = load_spec(path)
    assert spec.priced_batch_size == spec.task.batch_size == 32
    with replaced_training():
        results = run_study(spec, tmp_path / "x.journal", processes=0)
    assert [name for name, _ in results.references] == ["float32", "torch.autocast.float16"]
    assert {row.speedup_over_tf32 for row in results.rows()} == {None}
    assert not any(row.by_hand for row in results.rows())
    assert "trained and priced at batch 32" in caption(results) and "TF32" not in caption(results)


def test_every_view_says_what_speed_is_compared_with_and_both_batches(
    journal: Path, results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = str(journal.with_name("tiny.toml")), str(journal.parent / "out")
    given = [study, "--storage", str(journal)]
    for row in results.rows():
        assert row.speedup_over_tf32 == pytest.approx(
            row.modeled_speedup / results.reference_speedups[TF32]
        )
    batches = "trained at batch 32, priced at batch 4096 (small kernels)"
    assert main(["show", *given]) == 0
    table = capsys.readouterr().out
    assert (
        "over TF32" in table and "over baseline" in table and f"the baseline {BASELINE} is" in table
    )
    number = results.knee().number
    assert main(["show", *given, "--trial", str(number)]) == 0
    page = capsys.readouterr().out
    assert main(["export", *given, "--pick", "knee", "--out", out]) == 0
    capsys.readouterr()
    code = Path(out, "tiny-torch.py").read_text(encoding="utf-8")
    for text in (page, code):
        text = " ".join(text.replace("#", " ").split())
        assert "over TF32" in text and f"over the baseline {BASELINE}" in text
    for text in (table, page, code, caption(results)):
        assert batches in " ".join(text.replace("#", " ").split())
    assert main(["show", *given, "--csv"]) == 0
    head = capsys.readouterr().out.splitlines()[0].split(",")
    assert {"speedup_over_tf32", "speedup_over_baseline", "batch_size"} <= set(head)
    axes = figure(results, VIEWS[0]).axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert any(BASELINE in label and "x float32" in label for label in labels)
    assert any(label.startswith("TF32:") for label in labels) and "baseline" in labels
    drawn = [np.unique(np.asarray(line.get_ydata())) for line in axes.lines]
    heights = {float(height[0]) for height in drawn if len(height) == 1}
    assert set(list(results.reference_speedups.values())[1:]) <= heights


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({"batch_size_reason": ""}, r"batch_size: 4096, trained at task\.batch_size 32; expected"),
        ({"batch_size": 32}, r"batch_size_reason: 'small kernels' with equal batches of 32"),
    ],
)
def test_two_batches_want_a_reason(cost: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=r"^tiny\.toml: cost\." + message):
        changed(cost=cost)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_studies_are_worth_showing(path: Path) -> None:
    spec = load_spec(path)
    assert spec.study.baseline in PRESETS and "uniform" in spec.space.ladder
    assert "none" not in spec.space.scalings
    first, last = (spec.task.rate_at(step) for step in (0, spec.task.steps - 1))
    peak = max(spec.task.rate_at(step) for step in range(spec.task.steps))
    assert first < peak == spec.task.learning_rate and last < 0.02 * peak
    equal = spec.priced_batch_size == spec.task.batch_size
    assert equal != bool(spec.cost.batch_size_reason)


@pytest.mark.parametrize("sampler", ["gain", "random"])
def test_a_preset_whose_op_lists_are_ordered_otherwise_is_trained_once(
    sampler: str, tmp_path: Path
) -> None:
    """A space that decides ops writes them last; `bfloat16` has them where they stand."""
    path = write_study(
        tmp_path,
        ("trials = 6", "trials = 40"),
        ('sampler = "random"', f'sampler = "{sampler}"'),
        ('"float32", "bfloat16", "float8_e4m3fn"', '"float32", "bfloat16"'),
        ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
        ("master_weights = [true, false]", "master_weights = [true]"),
    )
    with replaced_training():
        results = run_study(load_spec(path), tmp_path / "j", processes=0)
    assert results.stopped == "the space has no other policy"
    alike = [lists_sorted(trial.policy).digest for trial in results.trials]
    assert len(set(alike)) == len(alike) > 6
