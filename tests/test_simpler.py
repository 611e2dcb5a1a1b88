"""The benchmark that prints what a decision is worth: its simpler study, its counts, its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.simpler import behind, rows, trainings, without
from policysearch.study.journal.trials import Confirmation
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

CHANGES = (
    ('sampler = "random"', 'sampler = "gain"'),
    ("trials = 6", "trials = 16"),
    ('ladder = ["bfloat16", "mindspore.O0", "apex.O3"]', 'ladder = ["uniform", "apex.O3"]'),
    ('loss_scales = ["none", "fixed", "dynamic"]', 'loss_scales = ["none"]\nphase_points = [0.5]'
     '\nphase_formats = ["same", "float32"]'),
)  # fmt: skip


@pytest.fixture
def spec(tmp_path: Path) -> StudySpec:
    return load_spec(write_study(tmp_path, *CHANGES))


def test_the_simpler_study_lacks_what_is_named(spec: StudySpec) -> None:
    plain = without(spec, ["phase_points", "phase_formats"])
    assert plain.space.phase_points == () and plain.space.phase_formats == ("same",)
    assert plain.study.name == "tiny-without"
    assert plain.task == spec.task and plain.space.formats == spec.space.formats


def test_what_it_has_not_cannot_be_left_out(spec: StudySpec) -> None:
    with pytest.raises(InputError, match="--without: 'phases'; did you mean 'phase_points'"):
        without(spec, ["phases"])
    with pytest.raises(InputError, match="loss_scales: 'fixed'; expected one of none"):
        without(spec, ["loss_scales=fixed"])


def test_trainings_are_counted_to_a_share_of_the_simpler_volume(
    spec: StudySpec, tmp_path: Path
) -> None:
    with replaced_training():
        every, fewer = (
            run_study(each, tmp_path / f"{each.study.name}.journal", processes=0)
            for each in (spec, without(spec, ["phase_points", "phase_formats"]))
        )
    counts = [trainings(every, fewer, share) for share in (0.5, 0.9, 1.0)]
    for counted in np.array(counts, dtype=float).T:
        known = counted[~np.isnan(counted)]
        assert (np.diff(known) >= 0).all()
    assert counts[-1][1] is not None and counts[-1][1] <= len(fewer.trials)
    assert trainings(fewer, fewer, 1.0)[0] == counts[-1][1]
    assert rows(every, fewer) == []  # nothing was confirmed


def test_what_is_behind_is_paired_by_seed() -> None:
    def confirmed(gaps: dict[int, float]) -> Confirmation:
        curves = tuple(((50, 9.0, 1.0), (100, gap, 1.0)) for gap in gaps.values())
        return Confirmation(100, tuple(gaps), 0.0, None, 1.0, False, curves)

    one, other = confirmed({4: 1.0, 5: 2.0, 6: 3.0}), confirmed({6: 3.5, 5: 3.0, 4: 0.5})
    assert behind(one, other, 0.3) == "+3.3e-01, 2 of 3 seeds, told"
    assert behind(other, one, 0.3) == "-3.3e-01, 1 of 3 seeds, not told"
    assert behind(one, other, 0.4) == "+3.3e-01, 2 of 3 seeds, not told"
    assert behind(one, None, 0.3) == ""
