"""An open study: its policies recorded with what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.study.aim import Aims
from policysearch.study.journal.records import Asked, Records, RunKey
from policysearch.study.journal.trials import FailedTrial, Trial, policy_name
from policysearch.study.optuna_samplers import distributions
from policysearch.study.optuna_view import TrialView, params_of, trial_view
from policysearch.study.prices import Prices, References
from policysearch.study.results.results import Results
from policysearch.study.runs import Runs
from policysearch.study.scoring import read_results, scored
from policysearch.study.specification import StudySpec, space_of


class Progress(Protocol):
    """Told after every training run."""

    def __call__(self, trained: float, results: Callable[[], Results], /) -> None:
        """`trained`: trials done, with fractions; `results()` is what they show, worked out."""
        ...


class Session:
    """A study that is open: the record of its policies, and its `runs`.

    `folder` is for what runs of low fidelity leave; see `Runs`.
    """

    def __init__(
        self,
        spec: StudySpec,
        objective: Objective,
        records: Records,
        folder: Path | None = None,
    ) -> None:
        study = spec.study
        self._spec = spec
        self.plan = study.plan(spec.objectives.names, spec.task.steps, spec.wanted)
        self.objective, self.records = objective, records
        self.space = space_of(spec, objective.model)
        self.runs = Runs(records, objective.float32, study.seeds, study.searched, folder)
        self.aims = Aims(spec, objective, self.space, self._matters)
        references = References(study.baseline, spec.space.accumulators[0], study.target)
        self.prices = Prices(objective, records, references)

    def results(self) -> Results:
        """Return what the study has found so far."""
        return read_results(self.records, self._spec, self.prices, self.prices.references)

    def _matters(self) -> float:
        return self.runs.matters_gap(self._spec.objectives.matters)

    def settling(self) -> dict[RunKey, Policy]:
        """Return the runs that members of the front lack: of the seeds it was not searched with.

        First those of members that were recorded, then of what the front is with all of them: so a
        study that was stopped trains the same.
        """
        trials, seeds = self.records.trials, self.runs.seeds
        known = {asked.digest: asked for asked in trials}
        members = [known[digest] for digest in self.records.finalists if digest in known]
        missing = self.runs.missing(members, seeds) if members else {}
        if not missing:
            front = [known[trial.digest] for trial in self.results().front]
            members = [asked for asked in front if self.runs.missing([asked], seeds)]
            missing = self.runs.missing(members, seeds) if members else {}
            if members:
                self.records.add_finalists([asked.digest for asked in members])
        return missing

    def record(self, asked: Asked) -> None:
        """Record a policy whose runs have ended, with what it is worth."""
        result, runs = self._score(asked), self.records.runs
        values: dict[str, float] | None = None
        readable: dict[str, object] = {"name": policy_name(asked.text)}
        if isinstance(result, Trial):
            values = {
                "loss_gap": result.loss_gap,
                "speedup": result.cost.speedup,
                "memory_ratio": result.cost.memory_ratio,
            }
            readable |= {"validation_accuracy": result.validation_accuracy}
            readable |= {"divergence": result.divergence} if result.diverged else {}
        elif result is not None:
            readable |= {"failure": result.reason}
        if asked.presets or asked.by_hand:
            digest = self.space.policy(asked.params).digest
            readable |= {"params_are": "exact" if digest == asked.digest else "the nearest"}
        self.records.add_trial(
            asked,
            distributions(self.space),
            {
                seed: runs[key]
                for seed in self.runs.seeds
                if (key := RunKey(asked.trained, seed)) in runs
            },
            self.prices.key,
            self.prices(asked),
            values,
            readable,
        )

    def _score(
        self, asked: Asked, seeds: Sequence[int] | None = None
    ) -> Trial | FailedTrial | None:
        """Return what the runs that the search sees amount to, whatever others there are."""
        base, seeds = self.runs.float32.digest, seeds or self.runs.searched
        return scored(asked, self.records.runs, base, seeds, self.prices)

    def view(self, asked: Asked, seeds: Sequence[int] | None = None) -> TrialView:
        """Return the policy as the sampler sees it, or as it is with `seeds`.

        What failed has the worst gap.
        """
        result = self._score(asked, seeds)
        params, price = params_of(asked, self.space), self.prices(asked)
        if isinstance(result, Trial):
            measured = result.validation_accuracy, result.metric
            return trial_view(params, result.loss_gap, price, *measured)
        return trial_view(params, None, price)
