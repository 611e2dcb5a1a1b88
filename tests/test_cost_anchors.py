"""Anchors: what related rows say of a modeled speedup, against the formulas of kriging."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from policysearch.cli import main
from policysearch.cost.devices import DEVICES
from policysearch.objective.published.anchored import anchored, usable_for
from policysearch.objective.published.anchors import (
    LARGEST_ERROR,
    Carried,
    Parts,
    carried,
    likeliest,
)
from policysearch.objective.published.known import Known, read_known
from policysearch.objective.published.networks import NETWORKS
from policysearch.objective.published.rows import SHIPPED, Setting, read_rows, setting_of
from policysearch.objective.published.stacks import FLOAT32, TFLOAT32
from policysearch.objective.published.steps import chosen

PARTS = Parts(run=0.008, network=0.006, own=0.01)


@pytest.fixture(scope="module")
def known() -> Known:
    """The rows of the first file alone: all would take a minute."""
    whole, ids = read_known(), {row.id for row in read_rows()}
    kept = np.array([setting.row.id in ids for setting in whole.settings])
    return dataclasses.replace(
        whole,
        settings=tuple(s for s, keep in zip(whole.settings, kept, strict=True) if keep),
        steps=chosen(whole.steps, kept),
        seconds=whole.seconds[kept],
        device_seconds=whole.device_seconds[kept],
    )


@pytest.fixture(scope="module")
def here() -> Setting:
    row = next(r for r in read_rows() if (r.model, r.framework) == ("resnet50", "PyTorch 1.13"))
    return setting_of(row)


def said(setting: Setting, anchors: Sequence[Setting], errors: Sequence[float]) -> Carried:
    usable = np.ones((1, len(anchors)), np.bool_)
    return carried([setting], anchors, np.array(errors), PARTS, usable)


def changed(setting: Setting, framework: str = "", **changes: Any) -> Setting:
    """The setting with other values, and its row with another version of the framework."""
    row = dataclasses.replace(setting.row, framework=framework or setting.row.framework)
    return dataclasses.replace(setting, row=row, **changes)


def test_one_anchor_counts_by_what_it_shares(here: Setting) -> None:
    """By hand: the shared variances over the anchor's own whole variance, times its error."""
    there = changed(here, device=DEVICES["H100-SXM5"])
    wide = FLOAT32 if here.precisions[0].products == "tfloat32" else TFLOAT32
    version = changed(there, "PyTorch 1.4")
    baseline = changed(there, precisions=(wide, here.precisions[1]))
    relative = changed(there, network=NETWORKS["resnet18"])
    framework = changed(there, "MXNet", stacks=dataclasses.replace(there.stacks, framework="mxnet"))
    stranger = changed(there, network=NETWORKS["vgg16"])
    assert here.network.family == "resnet"
    for anchor, shared in (
        (there, 0.014),
        (version, 0.006),
        (baseline, 0.006),
        (relative, 0.008),
        (framework, 0.0),
        (stranger, 0.0),
    ):
        found = said(here, [anchor], [0.3])
        assert found.shift[0] == pytest.approx(0.3 * shared / 0.024)
        assert found.spread[0] ** 2 == pytest.approx(0.024 - shared**2 / 0.024)
        assert found.anchored[0] == (shared > 0)


def test_more_anchors_say_more_and_an_outlier_no_more_than_a_bound(here: Setting) -> None:
    there = changed(here, device=DEVICES["H100-SXM5"])
    one, two = said(here, [there], [0.3]), said(here, [there, there], [0.3, 0.3])
    # two that agree: like one whose own part has half the variance
    assert two.shift[0] == pytest.approx(0.3 * 0.014 / 0.019)
    assert one.spread[0] > two.spread[0] > PARTS.own**0.5
    wrong = said(here, [there], [3.0])
    assert wrong.shift[0] == pytest.approx(LARGEST_ERROR * 0.014 / 0.024)


def test_several_anchors_are_the_conditional_mean_of_a_normal(here: Setting) -> None:
    """Against brute force: the density of the row's error, with those of the anchors given."""
    version = changed(here, "PyTorch 1.4")
    relative = changed(here, network=NETWORKS["resnet18"])
    errors = [0.2, -0.1]
    found = said(here, [version, relative], errors)
    whole, own = 0.024, np.eye(3)
    shared = np.array([[0, 0.006, 0.008], [0.006, 0, 0], [0.008, 0, 0]])
    normal = multivariate_normal(np.zeros(3), shared + whole * own)
    grid = np.linspace(-1.5, 1.5, 6001)
    density = normal.pdf([[x, *errors] for x in grid])
    density /= density.sum()
    mean = float(grid @ density)
    assert found.shift[0] == pytest.approx(mean, abs=1e-6)
    assert found.spread[0] ** 2 == pytest.approx(float((grid - mean) ** 2 @ density), rel=1e-4)


def test_variances_are_found_that_made_the_errors(known: Known) -> None:
    """Errors drawn with known variances, on the package's rows: their mean over draws comes out."""
    settings = known.settings
    runs = [(s.network.family, s.row.framework, s.precisions[0].products) for s in settings]
    networks = [(s.network.name, s.stacks.framework) for s in settings]
    generator = np.random.default_rng(0)

    def drawn(keys: Sequence[object], variance: float) -> np.ndarray:
        of = {key: generator.normal(0, variance**0.5) for key in dict.fromkeys(keys)}
        return np.array([of[key] for key in keys])

    found = []
    for _ in range(8):
        own = generator.normal(0, 0.06, len(settings))
        parts = likeliest(settings, drawn(runs, 0.008) + drawn(networks, 0.01) + own)
        found.append(dataclasses.astuple(parts))
    assert np.mean(found, axis=0) == pytest.approx([0.008, 0.01, 0.0036], rel=0.25)


def test_a_row_is_held_out_with_its_device_but_ones_own_measurement_counts(
    here: Setting, known: Known
) -> None:
    again = dataclasses.replace(here, row=dataclasses.replace(here.row, id="elsewhere"))
    own = dataclasses.replace(here, row=dataclasses.replace(here.row, batches=(7, 7)))
    there = dataclasses.replace(own, device=DEVICES["H100-SXM5"])
    assert usable_for([here], [here, again, own, there]).tolist() == [[False, False, True, True]]
    assert usable_for([here, own], [own, there]).tolist() == [[False, True], [False, True]]
    alone = anchored(known, [here], [known.left_out(here)], [here])
    assert alone.factors.tolist() == [1.0] and alone.intervals == (None,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shipped", "bare", "mean", "related", "with_anchors", "held"),
    [
        (SHIPPED[0], 0.1072, 0.1007, 160, 0.1015, 0.819),
        (SHIPPED[1], 0.1307, 0.1236, 28, 0.0966, 0.857),
    ],
    ids=["families", "devices"],
)
def test_anchors_bring_rows_nearer_whose_family_or_device_nobody_saw(
    shipped: str, bare: float, mean: float, related: int, with_anchors: float, held: float
) -> None:
    known = read_known()
    rows = set(read_rows(shipped=shipped))
    settings = [setting for setting in known.settings if setting.row in rows]
    left_out = [known.left_out(setting) for setting in settings]
    before, _ = known.judged(settings, left_out)
    found = anchored(known, settings, left_out, known.settings)
    truth = np.array([setting.row.speedup for setting in settings])
    ratios = truth / (before * found.factors)
    assert abs(before / truth - 1).mean() == pytest.approx(bare, abs=5e-4)
    near = np.array([interval is not None for interval in found.intervals])
    errors = abs(1 / ratios - 1)
    assert errors.mean() <= mean + 5e-4
    assert near.sum() == related and errors[near].mean() <= with_anchors
    pairs = zip(ratios, found.intervals, strict=True)
    holds = [i.low <= ratio <= i.high for ratio, i in pairs if i is not None]
    assert np.mean(holds) == pytest.approx(held, abs=0.006)


def row_of(**changes: object) -> dict[str, object]:
    return {
        "id": "mine",
        "model": "resnet50",
        "framework": "PyTorch 1.13",
        "hardware": "RTX A6000",
        "batch_per_gpu_baseline": 64,
        "batch_per_gpu_mixed": 64,
        "dtype_baseline": "tf32",
        "dtype_mixed": "fp16",
        "throughput_baseline": 1000,
        "throughput_mixed": 1800,
        "speedup": 1.8,
        **changes,
    }


@pytest.mark.slow
def test_the_command_says_what_became_of_every_anchor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, anchors = tmp_path / "rows.json", tmp_path / "anchors.json"
    given = [
        row_of(batch_per_gpu_mixed=128),
        row_of(id="wrong", speedup=8.0),
        row_of(id="unknown", hardware="Abacus"),
        row_of(id="other", framework="MXNet"),
    ]
    rows.write_text(json.dumps([row_of()]), encoding="utf-8")
    anchors.write_text(json.dumps(given), encoding="utf-8")
    assert main(["validate-cost", "--rows", str(rows), "--anchor", str(anchors)]) == 0
    out = capsys.readouterr().out
    assert " x1." in out and "anchors: 3, related to 1 of 1 rows" in out
    assert "not built: unknown resnet50: unknown device 'Abacus'" in out
    assert "doubtful: wrong resnet50 on RTX A6000: published 8.00" in out
    assert "and counts as 1.65 times" in out
    assert "doubtful: wrong resnet50 on RTX A6000: a speedup of 8.00, but 1.80 by its" in out
    assert out.count("doubtful") == 2
    anchors.write_text(json.dumps(given[2:3]), encoding="utf-8")
    assert main(["validate-cost", "--rows", str(rows), "--anchor", str(anchors)]) == 2
    error = capsys.readouterr().err
    assert "anchors.json: no row could be built: unknown device 'Abacus'" in error


def test_the_row_in_the_docs_is_one(tmp_path: Path) -> None:
    page = Path(__file__).parents[1] / "docs" / "lab" / "cost.md"
    (text,) = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    (row,) = read_rows(path)
    assert setting_of(row).device.name == "RTX-4090"
    assert row.speedup == pytest.approx(row.throughputs[1] / row.throughputs[0])
    assert not row.doubtful and not any(row.doubtful for row in read_rows())
