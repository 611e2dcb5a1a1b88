"""The training runs of a study: which its policies still need, and how they are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from policysearch.objective.objective import JITTER
from policysearch.objective.score import Failure, Outcome
from policysearch.policy.policy import Policy
from policysearch.study.float32_runs import learned, lost_seed, noise_gap
from policysearch.study.journal.records import Asked, Records, RunKey, trained_digest
from policysearch.study.journal.trials import Trial
from policysearch.study.results.ranking import matters_gap
from policysearch.study.workers.executors import Executor, Job


@dataclass(frozen=True)
class Horizon:
    """What is trained to confirm: over `steps` steps, with each of `seeds`."""

    steps: int
    seeds: tuple[int, ...]


def horizon_of(seeds: Sequence[int], steps: int, factor: float, count: int) -> Horizon:
    """Return `factor` times the steps, and the `count` smallest seeds above those of the search."""
    first = max(seeds) + 1
    return Horizon(max(1, round(steps * factor)), tuple(range(first, first + count)))


class Runs:
    """The runs of the policies in `records`, as keys and as jobs of an executor.

    The search trains each policy with every seed of `searched`, the first of `seeds`; float32 is
    trained with all of them. `folder` is for what runs of low fidelity leave, for whole runs to go
    on from; None leaves nothing.
    """

    def __init__(
        self,
        records: Records,
        float32: Policy,
        seeds: Sequence[int],
        searched: Sequence[int],
        folder: Path | None = None,
    ) -> None:
        self.records, self.float32, self.folder = records, float32, folder
        self.seeds, self.searched = tuple(seeds), tuple(searched)

    def matters_gap(self, share: float) -> float:
        """Return the least gap that matters, in nats, by the runs of float32 that ended by now."""
        of_float32 = self.records.runs, self.float32.digest, self.seeds
        return matters_gap(share, learned(*of_float32), noise_gap(*of_float32))

    @property
    def no_reference(self) -> bool:
        """Whether float32 failed, diverged or has not learned; False while its runs go on."""
        if self.missing_float32():
            return False
        of_float32 = self.records.runs, self.float32.digest, self.seeds
        if lost_seed(*of_float32) is not None:
            return True
        shown = learned(*of_float32, self.records.constant)
        return bool(shown and shown.fault)

    def forget_failed(self) -> None:
        """Let the runs that failed be missing: they are tried again."""
        runs = self.records.runs
        failed = {key for key, outcome in runs.items() if isinstance(outcome, Failure)}
        self.records.runs = {key: runs[key] for key in runs if key not in failed}

    def missing(
        self, trials: Sequence[Asked], seeds: Sequence[int] | None = None
    ) -> dict[RunKey, Policy]:
        """Return the runs that `trials`, and float32 as their reference, still need.

        With each of `seeds`; None stands for those that the search trains with.
        """
        runs, seeds = self.records.runs, seeds or self.searched
        wanted = [(asked, RunKey(asked.trained, seed)) for asked in trials for seed in seeds]
        missing = {key: asked.policy for asked, key in wanted if key not in runs}
        return missing | (self.missing_float32() if trials else {})

    def missing_float32(self) -> dict[RunKey, Policy]:
        """Return the runs of float32, with and without jitter, that are still to be trained."""
        digest = self.float32.digest
        reference = [RunKey(digest, s, j) for j in (0.0, JITTER) for s in self.seeds]
        return {key: self.float32 for key in reference if key not in self.records.runs}

    def ended(self, asked: Asked, jittered: bool = False) -> bool:
        """Whether the runs that the policy is scored by have ended, float32's among them.

        With `jittered` those under jitter too: they say which gap matters.
        """
        keys = [RunKey(asked.trained, seed) for seed in self.searched]
        jitters = (0.0, JITTER) if jittered else (0.0,)
        keys += [RunKey(self.float32.digest, s, j) for s in self.seeds for j in jitters]
        return all(key in self.records.runs for key in keys)

    def trained(
        self, executor: Executor, runs: Mapping[RunKey, Policy]
    ) -> Iterator[tuple[RunKey, Outcome]]:
        """Train `runs` and yield each with how it ended, in the order they end."""
        keys = list(runs)
        jobs = [self.job(key, runs[key]) for key in keys]
        for index, outcome in executor.run(jobs):
            yield keys[index], outcome

    def job(self, key: RunKey, policy: Policy) -> Job:
        """Return a run as executors take it; one of low fidelity is kept for the whole to go on."""
        whole = RunKey(key.digest, key.seed)
        continued = key.until or any(
            asked.trained == key.digest for asked in self.records.low_fidelity.values()
        )
        place = None
        if self.folder is not None and continued and replace(key, until=None) == whole:
            place = self.folder / f"{key.digest}-{key.seed}.npz"
        return Job(policy, key.seed, key.jitter, key.steps, key.until, place, key.width)

    def confirming(
        self, trials: Sequence[Trial], horizon: Horizon, retry_failed: bool = False
    ) -> dict[RunKey, Policy]:
        """Return the runs that confirm `trials` over `horizon` and are still to be trained.

        With `retry_failed` also those that failed.
        """
        runs = self.records.runs
        known = {k for k, run in runs.items() if not (retry_failed and isinstance(run, Failure))}
        policies = [self.float32, *(trial.policy for trial in trials)]
        return {
            key: policy
            for policy in policies
            for seed in horizon.seeds
            if (key := RunKey(trained_digest(policy), seed, 0.0, horizon.steps)) not in known
        }
