"""Replays the trainings of `tests.recorded_runs` as torch recorded them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from policysearch.train.training import train
from tests.recorded_runs import CASES, FILE


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    with np.load(FILE, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_training_is_replayed(name: str, recorded: dict[str, NDArray[Any]]) -> None:
    """Losses within 1e-5 or a few times torch's noise; scales, skips and lost losses the same."""
    case, order = CASES[name], recorded["batches"].astype(np.int64)
    dataset = case.dataset(order)
    prefix = f"init/{case.model}/"
    initial = {
        key.removeprefix(prefix): value.astype(np.float32)
        for key, value in recorded.items()
        if key.startswith(prefix)
    }
    run = train(
        case.task, case.policy(dataset), 0, dataset=dataset, initial=initial, batch_indices=order
    )
    loss = recorded[f"{name}/loss"]
    np.testing.assert_array_equal(run.scales, recorded[f"{name}/scale"])
    np.testing.assert_array_equal(run.skipped, recorded[f"{name}/skipped"])
    finite = np.isfinite(loss)
    np.testing.assert_array_equal(np.isfinite(run.losses), finite)
    assert (case.outlier is None) == finite.all()
    gap = np.maximum.accumulate(np.where(finite, np.abs(run.losses - loss), 0.0))
    noise = recorded[f"{name}/noise"]
    print(f"{name}: {gap[9]:.1e} to step 10 ({noise[9]:.0e}), {gap[-1]:.1e} ({noise[-1]:.0e})")
    assert loss[finite][-5:].mean() < loss[0]
    assert (gap <= np.maximum(1e-5, case.slack * noise)).all()
