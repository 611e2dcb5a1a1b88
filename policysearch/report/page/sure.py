"""How sure the front is: the gap seed by seed, and what longer training makes of it."""

from __future__ import annotations

from policysearch.objective.score import share_of
from policysearch.report.page.element import Child, Html, Section, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import (
    Axis,
    dots,
    label,
    line,
    rect,
    svg,
    upright_grid,
)
from policysearch.report.page.words import gap, percent, power
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.results.gain import expected_gaps

SECTION = Section(50, "sure", "How sure is that?", "How sure")

MOST_LINES = 12

CONFIRM = (
    "A short run lies about the end: policysearch confirm trains the front over ten times the "
    "steps."
)


def body(sight: Sight) -> Html | None:
    """Return the gaps by seed, the longer runs, and the noise they are measured against."""
    trials = [t for t in sight.detailed if not t.diverged][:MOST_LINES]
    if not trials:
        return None
    results = sight.results
    noise = "The noise of this recipe was not measured."
    if results.noise_gap is not None:
        noise = (
            f"float32's own loss moves by {power(results.noise_gap)} nats when its initial weights "
            f"are jittered by one part in a million; gaps count from ten times that on."
        )
    matters = (
        f"Gaps up to {power(results.matters_gap)} nats are treated as equal: "
        f"{results.spec.objectives.matters:.3g} of what float32 learns, or what noise leaves."
    )
    both = tag("div", _seeds(sight, trials), _later(sight), _foretold(sight), cls="two")
    return joined((tag("p", noise, " ", matters), both))


def _seeds(sight: Sight, trials: list[Trial]) -> Html:
    """Draw the gap of every seed, and the 95 % interval of the mean."""
    results = sight.results
    gaps = [score.loss_gap for trial in trials for score in trial.scores]
    spans = [i for t in trials if (i := results.interval(t)) is not None]
    low = min([0.0, *gaps, *(span.low for span in spans)])
    high = max([0.0, *gaps, *(span.high for span in spans)])
    margin = 0.05 * (high - low or 1.0)
    sizes = [abs(value) for value in gaps if value]
    bend = results.resolution_gap or min(sizes, default=0.0)
    low, high = low - max(margin * 0.2, bend), high + max(margin * 0.2, bend)
    x = Axis(low, high, 78, 425, bend=bend)
    bottom = 24.0 * len(trials) + 8
    parts: list[Child] = [upright_grid(x, 4, bottom, lambda v: power(v, 0, sign=True), 4)]
    edge = results.resolution_gap
    if edge:
        parts.append(rect(x(-edge), 4, max(1.0, x(edge) - x(-edge)), bottom - 4, "noise"))
    parts.append(line(x(0.0), 4, x(0.0), bottom, "base"))
    for place, trial in enumerate(trials):
        y = 18.0 + 24.0 * place
        parts.append(label(70, y + 4, f"trial {trial.number}{sight.mark(trial.number)}", "", "end"))
        span = results.interval(trial)
        if span is not None:
            parts.append(line(x(span.low), y, x(span.high), y, "step"))
        parts.append(dots([(x(score.loss_gap), y) for score in trial.scores], "dot-other"))
        parts.append(tag("circle", cx=round(x(trial.loss_gap), 1), cy=y, r=4, cls="dot-front"))
    said = ", ".join(f"trial {t.number} {gap(t.loss_gap)}" for t in trials)
    picture = svg(440, bottom + 24, *parts, label=f"Loss gaps in nats: {said}")
    note = (
        "Loss gap in nats, logarithmic on both sides of zero. Grey: one training each. Blue: their "
        "mean, with its 95 % interval. A bar over zero cannot be told from float32."
    )
    return tag(
        "figure", tag("h3", "Can seeds tell it from float32?"), picture, tag("figcaption", note)
    )


def _foretold(sight: Sight) -> Html | None:
    """Draw the gap that the search expected of each policy beside the one it measured."""
    asked = expected_gaps(sight.results)
    shown = [each for each in asked if each.trial in sight.linked][:MOST_LINES]
    if not shown:
        return None
    every = [value for each in shown for value in (each.gap, each.middle, each.low, each.high)]
    x = Axis(min(every) / 1.5, max(every) * 1.5, 78, 425, log=True)
    bottom = 24.0 * len(shown) + 8
    parts: list[Child] = [upright_grid(x, 4, bottom, lambda v: power(v, 0), 4)]
    for place, each in enumerate(shown):
        y, name = 18.0 + 24.0 * place, f"trial {each.trial}{sight.mark(each.trial)}"
        parts.append(label(70, y + 4, name, "", "end"))
        parts.append(line(x(each.low), y, x(each.high), y, "step"))
        parts.append(line(x(each.middle), y - 5, x(each.middle), y + 5, "step"))
        parts.append(tag("circle", cx=round(x(each.gap), 1), cy=y, r=4, cls="dot-front"))
    said = ", ".join(f"trial {e.trial} {gap(e.gap)} for {gap(e.middle)}" for e in shown)
    picture = svg(440, bottom + 24, *parts, label=f"Measured for expected gaps in nats: {said}")
    held = sum(each.held for each in asked)
    note = (
        "Loss gap in nats. Bar: four in five gaps were expected there before the policy was "
        f"trained; tick: its middle. Blue: measured. {held} of {len(asked)} lie within. Less than "
        "noise is drawn as that much."
    )
    head = tag("h3", "Did it come out as the search expected?")
    return tag("figure", head, picture, tag("figcaption", note))


def _later(sight: Sight) -> Html:
    """Return what was trained longer as a table: gap then, and beside float32's loss."""
    results = sight.results
    pairs = [(t, c) for t in sight.detailed if (c := results.confirmation(t)) is not None]
    head = tag("h3", "Does it hold in a longer training?")
    if not pairs:
        said = "Nothing was trained longer yet. "
        said += CONFIRM if results.front else "Without a front there is nothing to confirm."
        return tag("div", head, tag("p", said, cls="warn"))
    lines = [_longer(sight, trial, found) for trial, found in pairs]
    steps = max(found.steps for _, found in pairs)
    titles = (
        "Trial",
        f"gap at {results.spec.task.steps} steps",
        f"gap at {steps} steps",
        "verdict",
    )
    top = tag("tr", *(tag("th", name, scope="col") for name in titles))
    table = tag("table", tag("thead", top), tag("tbody", *lines), cls="list")
    note = (
        "In nats, on seeds that the search did not see; in brackets the share of float32's own "
        "loss there."
    )
    scroll = tag("div", table, cls="scroll", tabindex=0, role="region", aria_label="Longer runs")
    return tag("div", head, scroll, tag("p", note, cls="note"))


def _longer(sight: Sight, trial: Trial, found: Confirmation) -> Html:
    fault = sight.results.fault(trial)
    share = share_of(found.loss_gap, found.float32_loss) if found.float32_loss else 0.0
    said = f"{gap(found.loss_gap)} ({percent(max(0.0, share))})"
    number = tag("a", str(trial.number), href=sight.href(trial.number))
    return tag(
        "tr",
        tag("th", number, f" {sight.mark(trial.number)}", scope="row"),
        tag("td", gap(trial.loss_gap), cls="number"),
        tag("td", "diverged" if found.diverged else said, cls="number"),
        tag("td", f"fails: {fault}" if fault else "holds", cls="h3" if fault else None),
        data_t=trial.number,
    )
