"""A training that was stopped: all that its next steps depend on, kept as a file."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.files import write_whole
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.loss_scale import ScaleState
from policysearch.train.observations import Observed
from policysearch.train.tasks import Task
from policysearch.values import InputError, from_plain, to_plain

Taken = list[tuple[float, float, bool]]
"""Loss, loss scale and whether the update was skipped, per step."""

VERSION = 3
"""Of the files: one of another version is none."""

ARRAY = "array:"
"""Before the name of a source that one step leaves to the next."""


@dataclass(frozen=True)
class State:
    """What a training knows beside its arrays.

    `of` says which training it is (`training_digest`), `version` how it is written. `scale` is the
    loss scale of the next step. `seen` is what was observed so far.
    """

    of: str
    version: int
    updates_done: int
    scale: ScaleState
    seen: Observed


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training after the steps `taken`; `arrays` are parameters, state and buffers by name."""

    state: State
    taken: Taken
    arrays: Mapping[str, FloatArray]

    def to_bytes(self) -> bytes:
        """Return the checkpoint as an npz file."""
        file = io.BytesIO()
        arrays = {ARRAY + name: array for name, array in self.arrays.items()}
        state = np.array(json.dumps(to_plain(self.state)))
        np.savez(file, state=state, taken=np.array(self.taken, np.float64), **arrays)  # type: ignore[arg-type]
        return file.getvalue()

    @staticmethod
    def from_bytes(content: bytes) -> Checkpoint:
        """Return the checkpoint that `to_bytes` wrote; InputError for anything else."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                state = from_plain(State, json.loads(str(file["state"])), "checkpoint")
                taken = [(loss, scale, bool(skip)) for loss, scale, skip in file["taken"].tolist()]
                named = [name for name in file.files if name.startswith(ARRAY)]
                arrays = {name.removeprefix(ARRAY): file[name] for name in named}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"checkpoint: {error}; expected one that was written here") from None
        return Checkpoint(state, taken, arrays)


def training_digest(
    task: Task,
    model: Model,
    dataset: Dataset,
    policy: Policy,
    seed: int,
    initial: Mapping[str, FloatArray],
    batch_indices: NDArray[np.int64],
) -> str:
    """Return SHA-256 in hex of all that decides a training's bits, but for the package itself."""
    words = (task.fingerprint, model.fingerprint, dataset.fingerprint, policy.digest, str(seed))
    digest = hashlib.sha256("\n".join(words).encode())
    for name, array in sorted(initial.items()):
        digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
    digest.update(np.ascontiguousarray(batch_indices).tobytes())
    return digest.hexdigest()


def read_checkpoint(path: Path, of: str) -> Checkpoint | None:
    """Return what `path` holds of the training `of`; None where that is nothing whole.

    A training without its checkpoint begins anew, to the same bits.
    """
    with suppress(InputError, OSError):
        checkpoint = Checkpoint.from_bytes(path.read_bytes())
        if (checkpoint.state.of, checkpoint.state.version) == (of, VERSION):
            return checkpoint
    return None


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint whole; nothing where there is no room, for it only saves time."""
    with suppress(InputError):
        write_whole({path: checkpoint.to_bytes()})
