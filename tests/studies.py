"""A study small enough for a test: one second of training in all; and stand-ins for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self
from unittest import mock

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.study.optuna_samplers import SAMPLERS, STOCK

BARE_SAMPLERS = tuple(x for x in SAMPLERS if x not in STOCK or not STOCK[x].needs)
"""Those that need nothing beside the package."""

TINY = """
[study]
name = "tiny"
trials = 6
sampler = "random"
workers = 2
seeds = [0, 1]
confirm_share = 0
least_gain = 0

[task]
model = "mlp"
activation = "tanh"
widths = [8]
data = "digits"
batch_size = 32
learning_rate = 0.1
steps = 6
tail_steps = 3

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 4096
batch_size_reason = "small kernels"

[space]
formats = ["float32", "bfloat16", "float8_e4m3fn"]
ops = ["tanh"]
master_weights = [true, false]
loss_scales = ["none", "fixed", "dynamic"]
growth_intervals = [10, 100]
ladder = ["bfloat16", "mindspore.O0", "apex.O3"]
"""

WITHOUT_TF32 = ('device = "H100-SXM5"', 'device = "MI300X"')
"""A change of TINY: where tfloat32 is no rival, its ladder is what the file names."""


def write_study(folder: Path, *changes: tuple[str, str], name: str = "tiny.toml") -> Path:
    """Write TINY with texts replaced to a file in `folder`; return its path."""
    text = TINY
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


Stand = Callable[[Policy, int], Measurement]
"""What a training run is replaced by: (policy, seed) to what it measures, or an exception."""


class Untrained:
    """What executors that train nothing have in common; `run` is theirs."""

    def __call__(self, objective: Objective) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def measured(policy: Policy, seed: int) -> Measurement:
    """Return a made-up measurement that differs by policy and seed, without training."""
    spread = share_of(policy)
    return Measurement(0.5 + 1e-3 * spread + 1e-5 * seed, 0.9, None, 0, (), ())


ADDED_OPS = frozenset(
    [
        "acos",
        "acosh",
        "as_strided",
        "asin",
        "asinh",
        "atan2",
        "atanh",
        "cholesky",
        "cosh",
        "det_sign",
        "digamma",
        "erfc",
        "fft",
        "irfft",
        "lgamma",
        "logcumsumexp",
        "logdet",
        "matrix_exp",
        "rfft",
        "scatter_extreme",
        "sign_of_power",
        "sinh",
        "solve",
    ]
)
"""Ops that came to the lists of presets since the numbers below were looked at."""


def as_before(policy: Policy) -> Policy:
    """Return the policy without ops that came to the lists of presets later."""

    def kept(ops: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(op for op in ops if op not in ADDED_OPS)

    return replace(
        policy,
        low_precision_ops=kept(policy.low_precision_ops),
        fp32_ops=kept(policy.fp32_ops),
        promote_ops=kept(policy.promote_ops),
    )


def share_of(policy: Policy) -> float:
    """Return a number in [0, 1) that the digest gives, the same after an op is added."""
    return int(as_before(policy).digest[:6], 16) / 2**24


@contextmanager
def replaced_training(stand: Stand = measured) -> Iterator[list[tuple[str, int, float]]]:
    """Replace training in this process; yields the (digest, seed, jitter) trained meanwhile."""
    trained: list[tuple[str, int, float]] = []

    def measure(
        _: Objective, policy: Policy, seed: int, jitter: float = 0.0, *_more: object
    ) -> Measurement:
        trained.append((policy.digest, seed, jitter))
        return stand(policy, seed)

    with mock.patch.object(Objective, "measure", measure):
        yield trained
