"""What a notebook shows of results, a trial, a policy or a study: no script, below 20 KB."""

from __future__ import annotations

from itertools import groupby

from policysearch.policy.policy import Policy
from policysearch.report.page.close_up import settings
from policysearch.report.page.element import Child, Html, joined, tag
from policysearch.report.page.front import KINDS, picture
from policysearch.report.page.losses import drawn
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import colour, formats_said, gap, short, times
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec

STYLE = (
    ".policysearch .picture{max-width:100%;height:auto;color:#16202c;background:#fff}"
    ".policysearch svg text{font:11.5px sans-serif;fill:#16202c}.policysearch .rule{stroke:#e8ebef}"
    ".policysearch .ref{stroke:#526070;stroke-dasharray:5 4}.policysearch .noise{fill:#fbecd5}"
    ".policysearch .matter{stroke:#0a6b4b;stroke-dasharray:9 3}.policysearch .hit{fill:none}"
    ".policysearch .step,.policysearch .range,.policysearch .loss{stroke:#0b57b0;fill:none}"
    ".policysearch .range{opacity:.5}.policysearch .dot-front{fill:#0b57b0}"
    ".policysearch .loss32{stroke:#98a3b0;stroke-width:6;opacity:.5;fill:none}"
    ".policysearch .dot-other{stroke:#98a3b0;stroke-width:7;stroke-linecap:round}"
    ".policysearch .dot-early{stroke:#7a4b00}.policysearch .dot-fail{stroke:#b3261e}"
    ".policysearch .ring{fill:none;stroke:#16202c}.policysearch .star{fill:#f2b233;stroke:#16202c}"
    ".policysearch td,.policysearch th{text-align:left}.policysearch td[class]{color:#16202c}"
    ".policysearch .f-fp32{background:#dde2e8}.policysearch .f-tf32{background:#c9d3df}"
    ".policysearch .f-bf16{background:#b9d8f7}.policysearch .f-fp16{background:#fbd38a}"
    ".policysearch .f-e4m3{background:#9fe0c8}.policysearch .f-e5m2{background:#c9e8a6}"
)

MOST_ROWS = 8
MOST_POINTS = 40
"""So many policies are drawn and told, the front first: a cell is no page."""

MOST_LETTERS = 80


def _cell(*children: Child) -> str:
    return tag("div", tag("style", Html(STYLE)), *children, cls="policysearch")


def _table(titles: tuple[str, ...], rows: list[list[Child]]) -> Html:
    head = tag("tr", *(tag("th", title) for title in titles))
    lines = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag("table", tag("thead", head), tag("tbody", *lines))


def results_html(results: Results) -> str:
    """Return the verdict, the front in speed as a picture, and its members as a table."""
    sight = Sight(results, "")
    shown = [row for row in sight.rows if not row.diverged][:MOST_POINTS]
    rows: list[list[Child]] = [
        [
            f"{row.trial} {sight.mark(row.trial)}",
            shortened(row.label, MOST_LETTERS),
            f"{times(row.modeled_speedup)} "
            f"({row.modeled_speedup_low:.2f}–{row.modeled_speedup_high:.2f})",
            times(row.modeled_memory_ratio),
            gap(row.loss_gap),
            shortened(sight.state(row), MOST_LETTERS),
        ]
        for row in shown[:MOST_ROWS]
    ]
    titles = (
        "trial",
        "policy",
        "modeled speed",
        "memory",
        f"gap, {results.unit}",
        "where it stands",
    )
    warned = [tag("p", f"warning: {shortened(line, 300)}") for line in sight.warnings[:3]]
    front = picture(sight, shown, KINDS[0], 640.0, 320.0) if shown else None
    more = len(results.trials) - len(rows)
    rest = tag("p", f"and {more} policies more: results.report() shows all") if more > 0 else None
    head = tag("p", tag("b", shortened(str(results.verdict), 600)))
    return _cell(head, warned, front, _table(titles, rows) if rows else None, rest)


def trial_html(trial: Trial) -> str:
    """Return what one policy came to, its loss beside float32's, and its formats."""
    cost = trial.cost
    said = (
        trial.divergence
        if trial.diverged
        else f"{times(cost.speedup)} float32 ({cost.speedup_low:.2f} to {cost.speedup_high:.2f}), "
        f"{times(cost.memory_ratio)} memory, modeled; "
        f"gap {gap(trial.loss_gap)} {trial.loss_unit} over {len(trial.scores)} seeds"
    )
    head = tag("b", f"trial {trial.number}: {shortened(trial.label, 200)}")
    return _cell(tag("p", head, f"; {said}"), drawn(trial), _policy(trial.policy))


def policy_html(policy: Policy) -> str:
    """Return the formats of a policy by layer, and what else it decides."""
    return _cell(tag("p", tag("b", shortened(policy.name, 200))), _policy(policy))


def _policy(policy: Policy) -> Html:
    groups = [list(rows) for _, rows in groupby(policy.layers, key=lambda row: row[1])]
    lines = []
    for rows in groups[:24]:
        name, layer = rows[0]
        said = name if len(rows) == 1 else f"{name} to {rows[-1][0]} ({len(rows)})"
        formats = (layer.compute, layer.grad, layer.output, layer.param)
        cells = [tag("td", short(each), cls=colour(each)) for each in formats]
        lines.append(tag("tr", tag("th", shortened(said, 60)), *cells))
    titles = ("layer", "products read", "and of gradients", "results", "stored")
    head = tag("tr", *(tag("th", title) for title in titles))
    more = len(groups) - 24
    rest = tag("p", f"and {more} groups of layers more") if more > 0 else None
    said = tag("p", shortened(f"{formats_said(policy)}; {settings(policy)}", 600))
    return joined((said, tag("table", tag("thead", head), tag("tbody", *lines)), rest))


def study_html(spec: StudySpec) -> str:
    """Return what a study searches, on what it trains, and where it is priced."""
    task, study = spec.task, spec.study
    rows: list[list[Child]] = [
        ["trains", f"{task.said}, batch {task.batch_size}"],
        ["for", f"{task.steps} steps, seeds {', '.join(map(str, study.seeds))}"],
        ["searches", f"{study.trials} policies, formats {', '.join(spec.space.formats)}"],
        ["priced on", f"{spec.cost.device} with {spec.cost.stack}, batch {spec.priced_batch_size}"],
        ["compared with", study.baseline or "float32"],
        ["exported to", study.target or "no target named"],
    ]
    cells: list[list[Child]] = [[shortened(str(c), 300) for c in row] for row in rows]
    return _cell(_table(("study", study.name), cells))
