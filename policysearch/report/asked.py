"""What is asked of results in Python and answered with text: a layer, a step, a loss scale.

These are the pages of `policysearch why`, `profile` and `propose`. What they need is imported when
they are asked, so that results are read and shown without it.
"""

from __future__ import annotations

import html

from policysearch.files import RESULTS_FOLDER
from policysearch.study.results.results import Results
from policysearch.study.specification import objective_of, space_of
from policysearch.values import brief


class Told(str):
    """Text of many lines: `print` shows it whole, and so does a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return brief(super().__repr__())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def why(results: Results, number: int, layer: str, processes: int | None) -> Told:
    """Return why a layer is as it is, or what one more decision buys; see `Results.why`.

    Runs are recorded in the journal that the results are from, the study's own where not known.
    """
    from policysearch.report.why_page import bought_page, why_page
    from policysearch.study.questions.next_decision import next_decisions
    from policysearch.study.questions.why import why as ask

    spec, trial = results.spec, results.trial(number)
    if not layer:
        bought = next_decisions(results, trial, space_of(spec), objective_of(spec))
        return Told(bought_page(trial, bought))
    storage = results.storage or RESULTS_FOLDER / f"{spec.study.name}.journal"
    return Told(why_page(ask(spec, storage, trial.policy, layer, processes=processes)))


def profile(results: Results, number: int) -> Told:
    """Return where the step of a trial goes; see `Results.profile`."""
    from policysearch.report.causes import Changes
    from policysearch.report.profile_page import profile_page
    from policysearch.space.target import as_run, baseline_as_run

    objective, policy = objective_of(results.spec), results.trial(number).policy
    study = results.spec.study
    changes = Changes(objective, policy, lambda each: as_run(each, objective.model, study.target))
    baseline = baseline_as_run(study.baseline, objective.model, study.target)
    return Told(profile_page(objective, changes, baseline))


def diagnose(results: Results, number: int, budget: int) -> Told:
    """Return why a trial fails and what repairs it; see `Results.diagnose`."""
    from policysearch.report.diagnosis_page import diagnosed

    spec, policy = results.spec, results.trial(number).policy
    study = spec.study
    return Told(diagnosed(objective_of(spec), policy, study.seeds, budget, study.target))


def propose(results: Results) -> Told:
    """Return what the float32 run suggests; see `Results.propose`."""
    from policysearch.study.questions.proposal import proposal

    return Told("\n".join(proposal(results.spec)))
