"""How sure the front is: the gap seed by seed, and what longer training makes of it."""

from __future__ import annotations

from policysearch.objective.score import share_of
from policysearch.report.page.element import Child, Html, Section, joined, scrolled, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import (
    Axis,
    dots,
    key,
    label,
    line,
    rect,
    svg,
    titled,
    upright_grid,
)
from policysearch.report.page.words import gap, percent, power, typeset
from policysearch.study.journal.trials import (
    GROWTH,
    SHARE_OF_LOSS,
    SMALL_SHARE,
    Confirmation,
    Trial,
)
from policysearch.study.results.gain import expected_gaps
from policysearch.study.results.results import Results

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
            f"float32's own loss moves by {power(results.noise_gap)} {results.unit} when its "
            f"initial weights are jittered by one part in a million; gaps count from ten times "
            "that on."
        )
    both = tag("div", _seeds(sight, trials), _foretold(sight), cls="two")
    return joined((tag("p", noise), tag("p", _measures(results)), _later(sight), both))


def _measures(results: Results) -> str:
    """Say by what a gap counts in the search, and by what a policy fails in a longer training."""
    steps, share = results.spec.task.steps, f"{100.0 * results.spec.objectives.matters:.3g}%"
    said = (
        f"At the {steps} steps of the search gaps up to "
        f"{power(results.matters_gap)} {results.unit} are treated as equal: that is {share} of "
        "what float32 learns, or what noise leaves."
    )
    longer = [found for _, found in results.confirmed if found.float32_loss > 0.0]
    if not longer:
        return said
    found = max(longer, key=lambda each: each.steps)
    return (
        f"There are two measures. {said} At {found.steps} steps a policy fails where its loss is "
        f"more than {100.0 * SHARE_OF_LOSS:g}% above float32's own, or its gap has grown more than "
        f"{GROWTH:g}-fold and is more than {100.0 * SMALL_SHARE:g}% of that. float32 has only "
        f"{power(found.float32_loss)} {results.unit} of loss left there, so a gap that does "
        "not matter in the search can be a failure then."
    )


def _seeds(sight: Sight, trials: list[Trial]) -> Html:
    """Draw the gap of every seed, and the 95% interval of the mean."""
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
    parts += [_seed_row(sight, trial, x, 18.0 + 24.0 * i) for i, trial in enumerate(trials)]
    said = ", ".join(f"trial {t.number} {gap(t.loss_gap)}" for t in trials)
    picture = svg(440, bottom + 24, *parts, label=f"Loss gaps in {sight.results.unit}: {said}")
    note = (
        f"Loss gap in {sight.results.unit}, logarithmic on both sides of zero. A bar over zero "
        "cannot be told from float32."
    )
    keys = (
        key("one training", dots([(9, 7)], "dot-other") or ""),
        key("their mean", tag("circle", cx=9, cy=7, r=4, cls="dot-front")),
        key("95% interval of the mean", line(0, 7, 18, 7, "step")) if spans else "",
        key("float32's own noise", rect(0, 1, 18, 12, "noise")) if edge else "",
    )
    head, legend = tag("h3", "Can seeds tell it from float32?"), tag("ul", *keys, cls="legend")
    return tag("figure", head, picture, legend, tag("figcaption", note))


def _seed_row(sight: Sight, trial: Trial, x: Axis, y: float) -> Html:
    span, mean = sight.results.interval(trial), trial.loss_gap
    shapes: list[Child] = [line(x(span.low), y, x(span.high), y, "step")] if span else []
    shapes.append(dots([(x(score.loss_gap), y) for score in trial.scores], "dot-other"))
    shapes.append(tag("circle", cx=round(x(mean), 1), cy=y, r=4, cls="dot-front"))
    between = f", 95% between {gap(span.low)} and {gap(span.high)}" if span else ""
    said = f"trial {trial.number}: mean {gap(mean)} {sight.results.unit}{between}"
    name = label(70, y + 4, f"trial {trial.number}{sight.mark(trial.number)}", "", "end")
    return joined((name, titled(joined(shapes), said)))


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
        shapes = (
            line(x(each.low), y, x(each.high), y, "step"),
            line(x(each.middle), y - 5, x(each.middle), y + 5, "step"),
            tag("circle", cx=round(x(each.gap), 1), cy=y, r=4, cls="dot-front"),
        )
        told = f"expected {power(each.low)} to {power(each.high)}, measured {power(each.gap)}"
        parts.append(titled(joined(shapes), f"trial {each.trial}: {told}"))
    said = ", ".join(f"trial {e.trial} {gap(e.gap)} for {gap(e.middle)}" for e in shown)
    picture = svg(
        440,
        bottom + 24,
        *parts,
        label=f"Measured for expected gaps in {sight.results.unit}: {said}",
    )
    held = sum(each.held for each in asked)
    note = (
        f"Loss gap in {sight.results.unit}. {held} of {len(asked)} lie within. Less than noise is "
        "drawn as that much."
    )
    bar = joined((line(0, 7, 18, 7, "step"), line(9, 3, 9, 11, "step")))
    keys = (
        key("measured", tag("circle", cx=9, cy=7, r=4, cls="dot-front")),
        key("four in five were expected here before training; tick: its middle", bar),
    )
    head = tag("h3", "Did it come out as the search expected?")
    legend = tag("ul", *keys, cls="legend")
    return tag("figure", head, picture, legend, tag("figcaption", note))


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
        "float32's own loss there",
        "share",
        "verdict",
    )
    top = tag("tr", *(tag("th", name, scope="col") for name in titles))
    table = tag("table", tag("thead", top), tag("tbody", *lines), cls="list")
    note = f"In {results.unit}, on seeds that the search did not see. "
    note += "Share: the gap of float32's own loss."
    return tag("div", head, scrolled(table, "Longer runs"), tag("p", note, cls="note"))


def _longer(sight: Sight, trial: Trial, found: Confirmation) -> Html:
    fault = sight.results.fault(trial)
    share = share_of(found.loss_gap, found.float32_loss) if found.float32_loss else 0.0
    number = tag("a", str(trial.number), href=sight.href(trial.number))
    return tag(
        "tr",
        tag("th", number, f" {sight.mark(trial.number)}", scope="row"),
        tag("td", gap(trial.loss_gap), cls="number"),
        tag("td", "diverged" if found.diverged else gap(found.loss_gap), cls="number"),
        tag("td", power(found.float32_loss), cls="number"),
        tag("td", "–" if found.diverged else percent(max(0.0, share)), cls="number"),
        tag("td", typeset(f"fails: {fault}") if fault else "holds", cls="h3" if fault else None),
        data_t=trial.number,
    )
