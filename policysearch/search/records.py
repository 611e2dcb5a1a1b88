"""What the trials of an Optuna study hold, read back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial, TrialState

from policysearch.cost.price import PolicyCost
from policysearch.objective import Measurement, gap, score
from policysearch.policy.policy import from_json
from policysearch.search.results import Results, Trial
from policysearch.search.spec import spec_from_data
from policysearch.values import from_plain


def trained_trials(study: optuna.Study) -> list[FrozenTrial]:
    """Return the finished trials that trained a policy of their own, by number."""
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in finished if "duplicate" not in trial.user_attrs]


def measured_runs(study: optuna.Study, seeds: Sequence[int]) -> dict[tuple[str, int], Measurement]:
    """Return every training run by (policy digest, seed), those of failed trials included."""
    runs = {}
    for trial in study.get_trials(deepcopy=False):
        for seed in seeds:
            plain = trial.user_attrs.get(f"measured:{seed}")
            if plain is not None:
                where = f"trial {trial.number} measured:{seed}"
                runs[trial.user_attrs["digest"], seed] = from_plain(Measurement, plain, where)
    return runs


def jittered_runs(study: optuna.Study, seeds: Sequence[int]) -> dict[int, Measurement]:
    """Return the float32 runs with jittered initial parameters, by seed."""
    attrs = study.user_attrs
    plain = {seed: attrs[f"jittered:{seed}"] for seed in seeds if f"jittered:{seed}" in attrs}
    return {seed: from_plain(Measurement, run, "jittered") for seed, run in plain.items()}


def recover(study: optuna.Study) -> None:
    """Fail the trials that a stopped run left running and put their policies in line again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
        kept = {k: v for k, v in trial.user_attrs.items() if k in ("policy", "digest", "preset")}
        if "policy" in kept:
            params = trial.system_attrs.get("fixed_params", trial.params)
            study.enqueue_trial(params, user_attrs=kept)


def read_results(study: optuna.Study) -> Results:
    """Return what the study has found so far."""
    spec = spec_from_data(study.user_attrs["spec"], f"study {study.study_name!r}")
    seeds = spec.study.seeds
    runs = measured_runs(study, seeds)
    presets: dict[str, list[str]] = {}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if "preset" in trial.user_attrs:
            presets.setdefault(trial.user_attrs["digest"], []).append(trial.user_attrs["preset"])
    base = next((digest for digest, names in presets.items() if "float32" in names), "")
    trials = []
    for trial in trained_trials(study):
        digest = trial.user_attrs["digest"]
        policy = from_json(trial.user_attrs["policy"], f"trial {trial.number} policy")
        cost = from_plain(PolicyCost, trial.user_attrs["cost"], f"trial {trial.number} cost")
        scores = tuple(score(runs[digest, seed], runs[base, seed], cost) for seed in seeds)
        trials.append(Trial(trial.number, policy, tuple(presets.get(digest, ())), scores))
    shifts = [
        gap(run, runs[base, seed])
        for seed, run in jittered_runs(study, seeds).items()
        if (base, seed) in runs
    ]
    noise = math.sqrt(math.fsum(s * s for s in shifts) / len(shifts)) if shifts else None
    return Results(spec, tuple(trials), noise)
