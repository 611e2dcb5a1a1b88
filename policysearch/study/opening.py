"""The journal of a study opened: to add to it, or to read what is in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from policysearch.data.datasets import check_batch
from policysearch.objective.objective import Objective
from policysearch.search.objectives import DIRECTIONS
from policysearch.study.journal.identity import (
    check_identity,
    check_task,
    differences,
    executor_of,
    identity_of,
    maker,
)
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import (
    check_name,
    exclusive,
    open_for_writing,
    quiet,
    read_checked,
)
from policysearch.study.optuna_samplers import OWN, sampler_named
from policysearch.study.prices import Prices, References
from policysearch.study.results.results import Results
from policysearch.study.scoring import read_results
from policysearch.study.specification import StudySpec, objective_of, space_of
from policysearch.values import InputError


@contextlib.contextmanager
def opened(
    spec: StudySpec, objective: Objective, storage: Path, accept_changes: bool = False
) -> Iterator[tuple[Records, Path]]:
    """Hold the journal at `storage`; yield its records, and a folder for what runs leave.

    Raises InputError as `run_study`.
    """
    if spec.study.sampler != OWN:
        sampler_named(spec.study.sampler, spec.study.seed)  # Says what is missing.
    identity = identity_of(
        spec.task,
        objective.model.fingerprint,
        objective.dataset.fingerprint,
        objective.float32.digest,
        executor_of(objective.fast),
    )
    space_of(spec, objective.model)  # Says what the space of this model cannot be.
    check_batch(objective.dataset, spec.task.batch_size)
    with exclusive(storage), quiet():
        names = list(spec.objectives.names)
        directions = [DIRECTIONS[name] for name in names]
        journal = open_for_writing(storage, spec.study.name, directions, names)
        records = Records(journal.reading.lines, journal)
        # Of runs whose record of it was lost to damage, only the task is taken for granted.
        lost = {**identity, "code": {}, "libraries": {}}
        last = [lost if records.runs else identity, *records.identities][-1]
        check_identity(last, identity, str(storage), accept_changes)
        if not records.identities:
            records.add_identity(last)
        if differences(records.identities[-1], identity):
            records.add_identity(identity)
        records.add_maker(maker())
        records.add_constant(objective.constant)
        code = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        yield records, storage.with_name(f"{storage.name}.{code}")


def load_results(spec: StudySpec, storage: Path) -> Results:
    """Return what the study in `storage` has found so far, as `spec` scores it.

    Nothing is changed. Raises InputError where there are no results, or those of another task.
    """
    if not storage.exists():
        raise InputError(
            f"storage {storage}: not there; expected the results of a run "
            f"(policysearch run makes them)"
        )
    reading = read_checked(storage)
    check_name(reading, spec.study.name, storage)
    records = Records(reading.lines)
    if not records.identities:
        fault = "what made its results was lost" if records.runs else "no results yet"
        valid = "`run --accept-changes`" if records.runs else "those of a run"
        raise InputError(f"storage {storage}: {fault}; expected {valid}")
    check_task(records.identities[-1], spec.task.to_plain(), str(storage))
    study = spec.study
    references = References(study.baseline, spec.space.accumulators[0], study.target)
    prices = Prices(objective_of(spec), records, references)
    return read_results(records, spec, prices, prices.references)
