"""The plots: what is on them, by asking the figure."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.text import Annotation, Text

from policysearch.formats import format_named
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.policy.presets import PRESETS
from policysearch.report.page.svg import mark_of
from policysearch.report.plots import (
    DPI,
    FRONT,
    KNEE,
    LINE,
    OTHERS,
    VERDICT,
    VIEWS,
    View,
    figure,
    plots,
)
from policysearch.report.table import caption, csv_text
from policysearch.study.results.results import Results
from policysearch.study.results.rows import Row
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import replaced_training, share_of, write_study


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("plots")
    return run_study(load_spec(write_study(folder)), folder / "x.journal", processes=0)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Policies drawn at random, with gaps made up that grow with what is saved."""

    def traded(policy: Policy, seed: int) -> Measurement:
        narrow = sum(32 - format_named(layer.compute).bits for _, layer in policy.layers)
        spread = 1.0 + 0.5 * share_of(policy)
        gap = 1e-4 * narrow * spread * (1.0 if policy.master_weights else 3.0)
        return Measurement(0.5 + gap + 1e-6 * seed, 0.9, None, 0, (), ())

    folder = tmp_path_factory.mktemp("many")
    path = write_study(folder, ("trials = 6", "trials = 40"), ("widths = [8]", "widths = [2048]"))
    with replaced_training(traded):
        return run_study(load_spec(path), folder / "x.journal", processes=0)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_points_front_presets_and_noise_are_drawn(results: Results, view: View) -> None:
    axes = figure(results, view).axes[0]
    drawn = {
        scatter.get_label(): {tuple(point) for point in np.asarray(scatter.get_offsets()).tolist()}
        for scatter in axes.collections
        if isinstance(scatter, PathCollection)
    }
    rows = [row for row in results.rows() if not row.diverged]
    for label, on_front in ((FRONT, True), (OTHERS, False)):
        wanted = {(r.counted_gap, view.value(r)) for r in rows if r.on_front == on_front}
        assert drawn.get(label, set()) == wanted
    for row in rows:
        for name in row.presets.split():
            assert drawn[name] == {(row.counted_gap, view.value(row))}
    assert any(patch.get_label() == "10 x noise floor" for patch in axes.patches)
    assert "modeled" in axes.get_ylabel()
    assert axes.get_xscale() == "log"


@pytest.mark.parametrize("better_by", [0.0, 0.2])
def test_every_point_is_within_the_axes(better_by: float, tmp_path: Path) -> None:
    """Also where float32 alone trained, and where every policy has a lower loss than it."""

    def trained(policy: Policy, seed: int) -> Measurement:
        float32 = policy.master_weights and all(x.compute == "float32" for _, x in policy.layers)
        moved = (0.01 if float32 else -0.01) * seed
        if not (float32 or better_by):
            return Measurement(None, 0.1, 2, 0, (), ())
        return Measurement(0.5 + moved - (0.0 if float32 else better_by), 0.9, None, 0, (), ())

    with replaced_training(trained):
        spec = load_spec(write_study(tmp_path))
        results = run_study(spec, tmp_path / "x.journal", processes=0)
    assert any(trial.diverged for trial in results.trials) == (not better_by)
    axes = figure(results, VIEWS[0]).axes[0]
    left, right = axes.get_xlim()
    drawn = [found for found in axes.collections if isinstance(found, PathCollection)]
    gaps = np.concatenate([np.asarray(found.get_offsets())[:, 0] for found in drawn])
    assert len(gaps) > 1 and left < 0.9 * gaps.min() and gaps.max() < 0.9 * right


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_line_joins_what_no_member_beats_in_the_plot(many: Results, view: View) -> None:
    def best(members: list[Row], of: View = view) -> list[tuple[float, float]]:
        found = {(max(row.counted_gap, least), of.sign * of.value(row)) for row in members}
        return sorted(
            p for p in found if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in found)
        )

    rows = [row for row in many.rows() if not row.diverged]
    least = min(row.counted_gap for row in rows if row.counted_gap > 0.0)
    members = [row for row in rows if row.on_front]
    wanted = best(members)
    (line,) = (found for found in figure(many, view).axes[0].lines if found.get_label() == LINE)
    gaps, values = np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist()
    assert list(zip(gaps, [view.sign * value for value in values], strict=True)) == wanted
    # What is grey for want of a difference that can be told is no corner of it, here in memory.
    assert len(wanted) > 1 and any(best(members, of) != best(rows, of) for of in VIEWS)


def test_the_title_names_net_and_data_of_ones_own(results: Results) -> None:
    task = results.spec.task
    data = replace(task.load_dataset(), name="my data")
    own = replace(results.spec, task=replace(task, data=data, model=task.build_model(data)))
    title = figure(replace(results, spec=own), VIEWS[0]).axes[0].get_title("left")
    assert f"policies for {own.task.model_name} on my data" in " ".join(title.split())
    assert len(title) < 200


def test_the_caption_says_on_what_the_numbers_rest(results: Results) -> None:
    text = caption(results)
    for word in ("Modeled", "H100-SXM5", "torch.compile", "4096", "seeds 0, 1", "float32", "Noise"):
        assert word in text
    shown = figure(results, VIEWS[0]).get_supxlabel()
    assert shown.split() == text.split()


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_front_members_are_numbered_and_the_star_is_the_verdict_s(
    results: Results, view: View
) -> None:
    # With resolved gaps: in the tiny study float32 is all of the front.
    wide = replace(results, noise_gap=1.0, learned=None)
    for these in (results, wide):
        axes = figure(these, view).axes[0]
        front = {(str(r.trial), view.value(r)) for r in these.rows() if r.on_front}
        numbers = [text for text in axes.texts if isinstance(text, Annotation)]
        assert {(text.get_text(), text.xy[1]) for text in numbers} == front
        boxes = [text.get_window_extent() for text in numbers]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        (star,) = (x for x in axes.collections if x.get_label() in (KNEE, VERDICT))
        number = these.verdict.trial if star.get_label() == VERDICT else these.knee().number
        (row,) = (row for row in these.rows() if row.trial == number)
        assert np.asarray(star.get_offsets()).tolist()[0][1] == view.value(row)


def test_a_preset_has_one_marker_in_every_plot(results: Results) -> None:
    """Whatever else is drawn: alone, and beside the others."""

    def marks(shown: Results) -> dict[str, tuple[bytes, bytes]]:
        axes = figure(shown, VIEWS[0]).axes[0]
        return {
            str(found.get_label()): (
                np.asarray(found.get_paths()[0].vertices).tobytes(),
                np.asarray(found.get_edgecolor()).tobytes(),
            )
            for found in axes.collections
            if isinstance(found, PathCollection) and found.get_label() in PRESETS
        }

    every = marks(results)
    assert len(every) >= 4 and len(set(every.values())) == len(every)
    pairs = {mark_of(name) for name in PRESETS}
    assert len(pairs) == len(PRESETS)  # no two alike, of all there are
    for trial in results.trials:
        if trial.presets and not trial.diverged:
            alone = marks(replace(results, trials=(trial,), learned=None))
            assert alone == {name: every[name] for name in trial.presets}


@pytest.mark.parametrize("matters", [0.0, 0.01, 0.5])
def test_a_line_lies_where_a_gap_begins_to_matter(results: Results, matters: float) -> None:
    objectives = replace(results.spec.objectives, matters=matters)
    shown = replace(results, spec=replace(results.spec, objectives=objectives))
    axes = figure(shown, VIEWS[0]).axes[0]
    lines = [line for line in axes.lines if "a gap matters" in str(line.get_label())]
    (place,) = {float(x) for line in lines for x in np.asarray(line.get_xdata())}
    assert place == shown.matters_gap and axes.get_xlim()[0] < place < axes.get_xlim()[1]
    verdict = " ".join(figure(shown, VIEWS[0]).get_suptitle().split())
    assert verdict == f"Verdict: {shown.verdict}"


def test_speed_has_the_interval_of_the_model_and_memory_none(results: Results) -> None:
    speed, memory = (figure(results, view).axes[0] for view in VIEWS)
    bars = [
        sorted(y for _, y in np.asarray(found.get_segments()[0]).tolist())
        for found in speed.collections
        if isinstance(found, LineCollection)
    ]
    for row in results.rows():
        if row.on_front:
            assert [row.modeled_speedup_low, row.modeled_speedup_high] in bars
    assert "interval of the model (upright)" not in memory.get_legend_handles_labels()[1]


@pytest.mark.parametrize("name", ["tiny", "a-long-name-of-a-study-" * 8, "W" * 200])
def test_nothing_written_on_a_plot_is_cut(results: Results, name: str) -> None:
    spec = results.spec
    seeds = tuple(range(1000, 1040))
    long = replace(spec, study=replace(spec.study, name=name, seeds=seeds))
    fig = figure(replace(results, spec=long), VIEWS[0])
    fig.set_dpi(DPI)  # as it is written
    fig.draw_without_rendering()
    axes = fig.axes[0]
    # Ticks beyond the axes are texts as well, but not drawn.
    ticks = {*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both")}
    written = [text for text in fig.findobj(Text) if text not in ticks and text.get_text()]
    assert len(written) > 8
    for text in written:
        box = text.get_window_extent()
        if text.get_visible():
            assert box.x0 >= 0 and box.y0 >= 0, text
            assert box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1, text


def test_equal_results_give_equal_files(results: Results) -> None:
    assert plots(results) == plots(results)


def test_the_frame_and_the_csv_hold_every_row(results: Results) -> None:
    """The CSV as the csv module writes it, and read back."""
    frame, rows = results.to_frame(), results.rows()
    names = [field.name for field in fields(Row)]
    assert list(frame.columns) == names and len(frame) == len(rows) == len(results.trials)
    assert [tuple(values) for values in frame.itertuples(index=False)] == [*map(astuple, rows)]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([names, *map(astuple, rows)])
    assert csv_text(results) == out.getvalue()
    bare = replace(results, noise_gap=None)
    assert [line["noise_gap"] for line in csv.DictReader(io.StringIO(csv_text(bare)))] == [
        "" for _ in rows
    ]
