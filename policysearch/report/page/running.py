"""What the layers of a policy run in, in words, and where that is not what the policy asks."""

from __future__ import annotations

from collections.abc import Iterable

from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.preset_row import MOVES
from policysearch.report.page.element import Html, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import shortened
from policysearch.report.page.words import span
from policysearch.report.runs_in import Runs, RunsIn
from policysearch.study.journal.trials import Trial
from policysearch.values import NO_LAYER

MOST_NAMED = 8
MOST_LETTERS = 300

NOT_KEPT = (
    "The net was not kept beside the journal, so these are the formats that the policy asks. Those "
    "below 16 bits, and tfloat32, hold for products alone: a layer without any runs in a wider one."
)


def running(sight: Sight, trial: Trial) -> Html:
    """Return a line per format with the layers that run in it, and what was asked otherwise."""
    policy, runs = trial.policy, sight.runs.get(trial.number)
    if runs is None:
        said = sight.formats_said(trial)
        return joined(
            (tag("p", f"{said}. {NOT_KEPT}"), tag("p", _storage_words(policy, None), cls="note"))
        )
    every = sum(row.product for row in runs.values())
    pairs = [(tag("dt", name), _layers(layers, every)) for name, layers in _layer_groups(runs)]
    notes = [_storage_words(policy, runs), *_otherwise(policy, runs)]
    notes += [
        f"From step {phase.first_step} on {_few([n or NO_LAYER for n, _ in phase.layers])} "
        "have other formats."
        for phase in policy.phases
    ]
    lines = [tag("p", note, cls="note") for note in notes]
    return joined((tag("dl", *pairs, cls="facts"), *lines))


def _layer_groups(runs: Runs) -> list[tuple[str, list[tuple[str, RunsIn]]]]:
    """Return the layers by what they run in, in words; first those in which products run."""
    found: dict[str, list[tuple[str, RunsIn]]] = {}
    for name, row in runs.items():
        forward, backward = " and ".join(row.forward), " and ".join(row.backward)
        said = forward if backward in ("", forward) else f"{forward}, gradients {backward}"
        found.setdefault(said or backward, []).append((name or NO_LAYER, row))
    return sorted(found.items(), key=lambda pair: not any(row.product for _, row in pair[1]))


def _layers(layers: list[tuple[str, RunsIn]], every: int) -> Html:
    """Return the layers of a group; `every`: how many layers of the net have products."""
    multiply = [name for name, row in layers if row.product]
    others = [name for name, row in layers if not row.product]
    whole = "every product, that is those of " if len(multiply) == every else "the products of "
    parts = [tag("b", f"{whole}{_few(multiply)}")] if multiply else []
    if others:
        lead = (
            "; and, where nothing is multiplied, " if multiply else "where nothing is multiplied: "
        )
        parts.append(tag("span", f"{lead}{_few(others)}"))
    return tag("dd", *parts)


def _few(names: list[str]) -> str:
    """Return names; of many how many there are, with the first and the last."""
    if len(names) > MOST_NAMED:
        return shortened(f"{len(names)} layers, {span(names)}", MOST_LETTERS)
    if len(names) < 2:
        return "".join(names)
    return shortened(f"{', '.join(names[:-1])} and {names[-1]}", MOST_LETTERS)


def _storage_words(policy: Policy, runs: Runs | None) -> str:
    """Say in what weights are kept."""
    if policy.master_weights:
        return "Weights are kept in float32 (master weights); layers read copies in their format."
    kept = {name for name, row in runs.items() if row.weights} if runs else dict(policy.layers)
    low = {n or NO_LAYER: r.param for n, r in policy.layers if r.param != "float32" and n in kept}
    if not low:
        return "Weights are kept in float32."
    stored = " and ".join(dict.fromkeys(low.values()))
    return f"Weights of {_few([*low])} are kept in {stored}, with no float32 copy (no masters)."


def _otherwise(policy: Policy, runs: Runs) -> Iterable[str]:
    """Yield where layers run in another format than is asked for them, a line per reason."""
    asked, found = dict(policy.layers), dict[tuple[str, str], dict[str, list[str]]]()
    for name, row in runs.items():
        if name in asked and (why := _reason(policy, asked[name], row)):
            ran = found.setdefault((asked[name].compute, why), {})
            ran.setdefault(" and ".join(row.forward), []).append(name or NO_LAYER)
    for (wanted, why), ran in found.items():
        said = "; ".join(f"{_few(names)} in {form}" for form, names in ran.items())
        yield f"Asked in {wanted} by the policy, and run in another format: {said}. {why}."


def _reason(policy: Policy, asked: LayerPolicy, row: RunsIn) -> str:
    """Return why a layer runs in another format than is asked for it; "" where it does not."""
    if row.product:
        wanted = {operand.format for operand in asked.product("fprop").operands}
        return "" if wanted.issuperset(row.forward) else "Lists of ops say so"
    if not row.ops or not row.forward or row.forward == (asked.compute,):
        return ""
    if format_named(asked.compute).operands_only:
        return f"{asked.compute} is for what products read, and nothing is multiplied there"
    listed = [op for op in row.ops if op in policy.fp32_ops]
    if listed and "float32" in row.forward:  # statistics of a norm are, and its result is not
        return f"The policy keeps {_few(listed)} in float32"
    if all(op in MOVES for op in row.ops):
        return "What only moves values keeps the format that they have"
    if any(op in policy.promote_ops for op in row.ops):
        return "They take the widest format among what they read"
    return "Their results have the format that the policy gives results"
