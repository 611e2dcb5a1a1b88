"""One policy up close: its settings, and every picture of this folder that is of one policy."""

from __future__ import annotations

from policysearch.formats import FORMATS
from policysearch.policy.policy import Policy
from policysearch.report.page.element import Html, Section, code, joined, tag
from policysearch.report.page.registry import found
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import gap, times, typeset
from policysearch.study.journal.trials import Trial

SECTION = Section(40, "policy", "One policy up close", "One policy")


def body(sight: Sight) -> Html | None:
    """Return every detailed policy, the pick open; the others open where they are asked for."""
    if not sight.detailed:
        return None
    left = len(sight.results.trials) - len(sight.detailed)
    more = f" {left} more are in the table of all policies." if left else ""
    intro = tag("p", f"The pick, the front, presets and what failed.{more}")
    return joined((intro, *(_policy(sight, trial) for trial in sight.detailed)))


def _policy(sight: Sight, trial: Trial) -> Html:
    mark = sight.mark(trial.number)
    row = sight.row[trial.number]
    picked = mark == "★"
    head = tag(
        "summary",
        tag("b", f"Trial {trial.number}{' ' + mark if mark else ''}"),
        f" {shortened(trial.label, 60)} ",
        tag("span", f"{times(trial.cost.speedup)} · {sight.state(row)}"),
    )
    figures = [(m.PICTURE.title, m.draw(sight, trial)) for m in found("PICTURE")]
    boxes = [
        tag("figure", tag("h3", title), picture)
        for title, picture in figures
        if picture is not None
    ]
    said = tag(
        "p", tag("b", f"{_capital(sight.formats_said(trial))}. "), _outlook_sentence(sight, trial)
    )
    inside = tag(
        "div",
        said,
        tag("p", settings(trial.policy), cls="note"),
        tag("div", *boxes, cls="two"),
        _why(sight, trial),
        id=f"t{trial.number}",
    )
    return tag("details", head, inside, cls="policy", open=picked or None)


def _capital(said: str) -> str:
    return said if said.split()[0] in FORMATS else f"{said[0].upper()}{said[1:]}"


def _outlook_sentence(sight: Sight, trial: Trial) -> str:
    results = sight.results
    if trial.diverged:
        return typeset(f"It does not train: {trial.divergence}.")
    said = f"{times(trial.cost.speedup)} the speed of float32, "
    said += f"{times(trial.cost.memory_ratio)} its memory; "
    said += f"loss gap {gap(trial.loss_gap)} {results.unit}. "
    outlook = typeset(results.outlook(trial))
    return f"{said}{outlook[0].upper()}{outlook[1:]}."


def settings(policy: Policy) -> str:
    """Return what a policy decides beside the formats of layers, in one line."""
    scale = policy.loss_scale
    sums = sorted({layer.accumulator for _, layer in policy.layers})
    parts = [
        f"loss scale: {scale.kind}"
        + ("" if scale.kind == "none" else f" from {scale.init_scale:g}"),
        f"tensor scaling: {', '.join(policy.recipes)}",
        f"masters: {'float32' if policy.master_weights else 'none'}",
        f"optimizer state: {policy.state_summary}",
        f"accumulator: {', '.join(sums)}",
    ]
    if policy.parallel.devices > 1:
        parts.append(f"{policy.parallel.summary}, gradients reduced in {policy.all_reduce}")
    for phase in policy.phases:
        parts.append(f"from step {phase.first_step} other formats in {len(phase.layers)} layers")
    return "; ".join(parts)


def _why(sight: Sight, trial: Trial) -> Html:
    text = sight.command(f"why {trial.number} LAYER --study {{0}}")
    said = "Why is a layer as it is? This trains it one format wider and narrower:"
    return code(said, f"why{trial.number}", text)
