"""What notebooks show of results, policies and studies, and what their methods make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policysearch.files import RESULTS_FOLDER, make_folder, write_whole
from policysearch.policy.policy import Policy
from policysearch.report.asked import diagnose, profile, propose, why
from policysearch.report.page.notebook import policy_html, results_html, study_html, trial_html
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.results.views import VIEWS
from policysearch.study.specification import StudySpec
from policysearch.values import IN_NOTEBOOKS, InputError, one_of

SUFFIXES = (".png", ".svg", ".pdf")


def install() -> None:
    """Let values show themselves, and results have their methods."""
    IN_NOTEBOOKS.update(
        Results=results_html, Trial=trial_html, Policy=policy_html, StudySpec=study_html
    )
    VIEWS.update(
        plot=plot, report=report, why=why, profile=profile, propose=propose, diagnose=diagnose
    )


def plot(results: Results, out: str | Path | None, axis: str) -> Any:
    """Return the plot of one axis as a figure; see `Results.plot`."""
    from policysearch.report.plots import VIEWS as KINDS
    from policysearch.report.plots import figure, image

    kinds = {view.name: view for view in KINDS}
    drawn = figure(results, kinds[one_of("axis", axis, kinds)])
    if out is not None:
        path = Path(out)
        make_folder(path.parent)
        write_whole({path: image(drawn, suffix_of(path))})
    return drawn


def suffix_of(path: Path) -> str:
    """Return in which format a picture is written there; InputError for none that is known."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"out: {path}; expected a file that ends in {', '.join(SUFFIXES)}")
    return path.suffix.lower()[1:]


def report(results: Results, out: str | Path | None, study: str) -> Path:
    """Write the page of a study; see `Results.report`."""
    from policysearch.report.page.frame import page

    path = Path(out) if out else RESULTS_FOLDER / f"{results.spec.study.name}.html"
    make_folder(path.parent)
    write_whole({path: page(results, study).encode()})
    return path


def html_of(value: Results | Trial | Policy | StudySpec) -> str:
    """Return what a notebook shows of a value."""
    return IN_NOTEBOOKS[type(value).__name__](value)
