"""Modeled speedups against published ones: the bars, and every number printed to users."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks.validation.__main__ import validation
from benchmarks.validation.fit import FITTED_NAMES, constants_at, fit, held_out, speedups, steps_of
from benchmarks.validation.pages.speed_page import validation_page
from benchmarks.validation.published import SHIPPED, read_rows, setting_of
from benchmarks.validation.published_memory import read_memory_rows
from benchmarks.validation.published_narrow import read_narrow_rows
from benchmarks.validation.published_stacks import pair_named
from benchmarks.validation.validate import Judged, Validation, settings_of, validate
from policysearch.cost.price import SPEEDUP_INTERVAL
from policysearch.cost.roofline import FITTED
from policysearch.values import InputError


@pytest.fixture(scope="module")
def families() -> Validation:
    return validate(read_rows())


@pytest.fixture(scope="module")
def devices() -> Validation:
    return validate(read_rows(shipped=SHIPPED[1]), read_rows())


def errors_of(rows: tuple[Judged, ...] | list[Judged]) -> np.ndarray:
    """Relative errors by hand, from published and modeled speedups alone."""
    return np.array([abs(row.speedup / row.setting.row.speedup - 1) for row in rows])


def test_other_families_are_within_the_bars(families: Validation) -> None:
    errors = errors_of(families.judged)
    truth = [row.setting.row.speedup for row in families.judged]
    assert len(errors) == 164 and not families.unbuilt
    assert {row.unseen for row in families.judged} == {"family"}
    assert errors.mean() <= 0.13
    assert np.quantile(errors, 0.9) <= 0.27
    assert spearmanr(truth, [row.speedup for row in families.judged]).statistic >= 0.9
    assert 0.7 <= np.mean([row.holds for row in families.judged]) <= 0.9
    assert errors.mean() < errors_of([twice(row) for row in families.judged]).mean() / 2


def twice(row: Judged) -> Judged:
    return dataclasses.replace(row, speedup=2.0)


def test_other_devices_are_within_the_bars(devices: Validation) -> None:
    bare = validate(read_rows(shipped=SHIPPED[1]))
    assert len(bare.judged) == 30 and errors_of(bare.judged).mean() <= 0.12
    with_anchors = [row for row in devices.judged if row.anchored]
    assert len(with_anchors) == 17 and errors_of(with_anchors).mean() <= 0.10


def test_a_held_out_family_was_not_fitted(families: Validation) -> None:
    """By hand for one family: a fit without its rows gives the same speedups."""
    settings, _ = settings_of(read_rows())
    rest = [s for s in settings if s.network.family != "ncf"]
    own = [s for s in settings if s.network.family == "ncf"]
    expected = speedups(steps_of(own), fit(steps_of(rest)))
    found = [r.speedup for r in families.judged if r.setting.network.family == "ncf"]
    assert len(found) == 15 and found == pytest.approx(expected.tolist(), rel=1e-6)


def test_what_is_fitted_is_what_policies_are_priced_with(families: Validation) -> None:
    assert len(FITTED_NAMES) == 8
    for name in FITTED_NAMES:
        assert getattr(FITTED, name) == pytest.approx(getattr(families.constants, name), rel=2e-3)
    assert families.interval == pytest.approx(SPEEDUP_INTERVAL, abs=2e-3)


def test_a_fit_finds_the_constants_that_made_the_rows() -> None:
    steps = steps_of(settings_of(read_rows())[0])
    made = constants_at(np.array([0.8, -0.8, -0.8, 0.5, -0.8, 0.8, 0.8, -0.8]))
    truth = speedups(steps, made)
    nowhere = np.full_like(steps.seconds, np.nan)
    found = fit(dataclasses.replace(steps, speedups=truth, seconds=nowhere))
    start = constants_at(np.zeros(len(FITTED_NAMES)))
    left, first = (np.abs(speedups(steps, c) / truth - 1).mean() for c in (found, start))
    assert left < 0.025 and left < first / 3


def test_the_command_prints_every_row_and_ends_with_the_error(
    capsys: pytest.CaptureFixture[str], families: Validation
) -> None:
    assert validation([]) == 0
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert lines == validation_page(families).split("\n")
    assert lines[-1] == f"mean error {errors_of(families.judged).mean() * 100:.1f} %"
    printed = [line.split()[0] for line in lines[3:167]]
    assert printed == [row.id for row in read_rows()]
    assert any(line.startswith("always 2x") for line in lines)


def test_rows_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be built is named with the reason, the rest is scored."""
    data = [
        {
            "model": model,
            "framework": framework,
            "hardware": hardware,
            "seq_len": None,
            "batch_per_gpu_baseline": 64,
            "batch_per_gpu_mixed": 64,
            "dtype_baseline": "tf32",
            "dtype_mixed": mixed,
            "throughput_baseline": 1000,
            "throughput_mixed": 1800,
            "speedup": 1.8,
        }
        for model, framework, hardware, mixed in (
            ("densenet121", "PyTorch 1.13", "RTX A6000", "fp16"),
            ("resnet49", "PyTorch 1.13", "RTX A6000", "fp16"),
            ("vgg16", "Abacus", "RTX A6000", "fp16"),
            ("vgg16", "PyTorch 1.13", "Abacus", "fp16"),
            ("vgg16", "PyTorch 1.13", "RTX A6000", "int8"),
        )
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert validation(["--rows", str(path), "--anchor", str(path)]) == 0
    out = capsys.readouterr().out
    for reason in (
        "resnet49: unknown network 'resnet49'; did you mean",
        "vgg16: unknown framework 'Abacus'",
        "vgg16: unknown device 'Abacus'",
        "vgg16: tf32 against int8: not float32 against half",
    ):
        assert reason in out
    assert "all                1 rows" in out
    assert "held out: 1 rows by family, 0 by device; 0 with anchors" in out


@pytest.mark.parametrize("read", [read_rows, read_narrow_rows, read_memory_rows])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "expected a JSON list of published rows"),
        ("[" * 100_000, "expected a JSON list of published rows"),
        ("{}", "a JSON dict; expected a list of rows"),
        ('[{"model": "vgg16", "framework": "torch", "kind": "step"}]', "row 0: no 'hardware'"),
        ("[3]", "row 0: 3; expected an object of fields"),
    ],
    ids=["cut", "deep", "dict", "without", "number"],
)
def test_a_broken_file_is_one_line(
    tmp_path: Path, read: Callable[[Path], object], text: str, complaint: str
) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read(path)
    (line,) = str(error.value).split("\n")
    assert line.startswith(f"{path}: ") and complaint in line


def test_what_float32_means_follows_the_framework() -> None:
    """torch.backends: tfloat32 in products by default until 1.11, in convolutions throughout."""
    row = next(r for r in read_rows() if r.hardware.startswith("A100"))
    found = {}
    for framework in ("PyTorch 1.7", "PyTorch 1.13"):
        plain = dataclasses.replace(row, formats=("fp32", "fp16"), framework=framework)
        wide = setting_of(plain).precisions[0]
        found[framework] = (wide.products, wide.convolutions)
    assert found == {
        "PyTorch 1.7": ("tfloat32", "tfloat32"),
        "PyTorch 1.13": ("float32", "tfloat32"),
    }


@pytest.mark.parametrize(
    ("framework", "library", "layout", "compiled"),
    [
        ("PyTorch 0.3", 9, "NCHW", False),
        ("PyTorch 1.4", 10, "NCHW", False),
        ("PyTorch 1.13", 11, "NCHW", False),
        ("PyTorch 2.1", 12, "NCHW", False),
        ("TensorFlow 1.12", 10, "NHWC", False),
        ("TF2.3 models", 11, "NHWC", False),
        ("NGC TF1.15 (AMP w/ XLA)", 10, "NHWC", True),
        ("NGC MXNet", 10, "NHWC", False),
        ("MXNet gluon-cv", 10, "NCHW", False),
        ("Caffe2", 9, "NCHW", False),
        ("JAX", 11, "NHWC", True),
    ],
)
def test_frameworks_have_the_stacks_of_their_time(
    framework: str, library: int, layout: str, compiled: bool
) -> None:
    mixed = pair_named(framework).mixed
    assert (mixed.library, mixed.layout, mixed.elementwise_fusion) == (library, layout, compiled)


def test_every_family_has_constants_of_its_own() -> None:
    steps = steps_of(settings_of(read_rows())[0])
    _, fits = held_out(steps)
    assert set(fits) == {"resnet", "bert", "ncf", "unet3d", "gnmt", "vgg"}
    assert len(set(fits.values())) == 6
