"""The plots: what is on them, by asking the figure."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, fields, replace

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from policysearch.report.front_data import caption, csv_text
from policysearch.report.plots import VIEWS, View, figure, plots
from policysearch.search.results import Results, Row
from policysearch.search.spec import load_spec
from policysearch.search.study import run_study
from tests.studies import write_study


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("plots")
    return run_study(load_spec(write_study(folder)), folder / "x.journal", processes=0)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_points_front_presets_and_noise_are_drawn(results: Results, view: View) -> None:
    axes = figure(results, view).axes[0]
    drawn = {
        scatter.get_label(): {tuple(point) for point in np.asarray(scatter.get_offsets()).tolist()}
        for scatter in axes.collections
        if isinstance(scatter, PathCollection)
    }
    rows = [row for row in results.rows() if not row.diverged]
    for label, on_front in (("front", True), ("dominated", False)):
        wanted = {(r.counted_gap, view.value(r)) for r in rows if r.on_front == on_front}
        assert drawn.get(label, set()) == wanted
    for row in rows:
        if row.presets:
            assert drawn[row.presets.replace(" ", "\n")] == {(row.counted_gap, view.value(row))}
    assert any(patch.get_label() == "10 x noise floor" for patch in axes.patches)
    assert "modeled" in axes.get_ylabel()
    assert axes.get_xscale() == "log"


def test_the_line_joins_what_nothing_beats_in_the_plot(results: Results) -> None:
    view = VIEWS[0]
    axes = figure(results, view).axes[0]
    line = max(axes.lines, key=lambda found: np.size(found.get_xdata()))
    gaps = np.asarray(line.get_xdata()).tolist()
    speeds = np.asarray(line.get_ydata()).tolist()
    assert gaps == sorted(gaps) and speeds == sorted(speeds)
    assert max(speeds) == max(row.modeled_speedup for row in results.rows() if not row.diverged)


def test_the_caption_says_on_what_the_numbers_rest(results: Results) -> None:
    text = caption(results)
    for word in ("Modeled", "H100-SXM5", "torch.compile", "4096", "seeds 0, 1", "float32", "Noise"):
        assert word in text
    shown = figure(results, VIEWS[0]).get_supxlabel()
    assert shown == text


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
