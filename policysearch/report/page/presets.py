"""Why the presets that people know are not what is picked, or that they were not tried here."""

from __future__ import annotations

from policysearch.cost.price import speedup_over
from policysearch.policy.presets import PRESETS, preset
from policysearch.report.page.element import Child, Html, Section, code, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import named
from policysearch.report.page.words import power, times, typeset
from policysearch.study.journal.trials import Trial

SECTION = Section(15, "presets", "Why not a preset that you know?", "Why not")

KNOWN = tuple(
    name
    for family in ("torch", "apex", "te", "mindspore")
    for name in PRESETS
    if name.startswith(f"{family}.") and (family == "torch" or name.count(".") == 1)
    if not name.endswith(".O0") and "_fwd" not in name
)
"""Those that people name: of these frameworks, without float32 and without variants."""


def body(sight: Sight) -> Html | None:
    """Return a line for each preset that was tried, and the names of those that were not."""
    results = sight.results
    if not sight.detailed:
        return None
    tried, failed = (
        _tried_presets(sight),
        {name: t.reason for t in results.failed for name in t.presets},
    )
    lines = [(name, _line(sight, trial)) for name, trial in tried.items()]
    lines += [
        (name, tag("dd", f"failed: {why}")) for name, why in failed.items() if name not in tried
    ]
    pairs = [(tag("dt", named(name, name)), said) for name, said in lines]
    parts: list[Child] = [tag("dl", *pairs, cls="facts")] if pairs else []
    missing = [name for name in KNOWN if name not in tried | failed]
    if missing:
        said = f"Not tried here, so nothing is known of them on this net: {', '.join(missing)}."
        ask = sight.command(f"try preset:{missing[0]} --study {{0}}")
        parts += [tag("p", said), code("One of them is tried by hand so:", "byhand", ask)]
    return joined(parts)


def _tried_presets(sight: Sight) -> dict[str, Trial]:
    """Return the presets that were trained: by the ladder, by hand, or as an equal policy."""
    tried = {name: t for t in sight.results.trials for name in t.presets}
    for trial in sight.results.trials:
        name = trial.name.partition(", as ")[0]
        if trial.by_hand and name in PRESETS:
            tried.setdefault(name, trial)
    layers = [name for name, _ in sight.detailed[0].policy.layers]
    digests = {trial.digest: trial for trial in sight.results.trials}
    for name in KNOWN:
        if name not in tried and (equal := digests.get(preset(name, layers).digest)):
            tried[name] = equal
    return tried


def _line(sight: Sight, trial: Trial) -> Html:
    """Return where a preset stands: its trial, its speed and gap, and that beside the pick."""
    number, mark = trial.number, sight.mark(trial.number)
    link = tag("a", f"trial {number}{mark and ' '}{mark}", href=sight.href(number))
    lost = (
        ""
        if trial.diverged
        else f", loss gap {sight.gap_said(sight.row[number])} {sight.results.unit}"
    )
    why = typeset(_why(sight, trial))
    said = f": {times(trial.cost.speedup)} the speed of float32{lost}. {why[0].upper()}{why[1:]}."
    return tag("dd", link, said, data_t=number)


def _why(sight: Sight, trial: Trial) -> str:
    """Return what speaks for and against a policy beside the pick."""
    results, pick = sight.results, sight.pick
    if trial.diverged:
        return f"does not train: {trial.divergence}"
    if pick is None:
        return "not ranked: see the answer"
    if trial is pick:
        return "this is the pick"
    over = speedup_over(trial.cost, pick.cost, "").value
    way = "slower, " if over < 1.0 else "faster, "
    said = [f"{way}{over:.2f}x the pick's speed" if _differs(over) else "as fast as the pick"]
    if results.doubt(trial):
        return f"{said[0]}, but {sight.state(sight.row[trial.number])}"
    mine, theirs = results.ranked_gap(trial), results.ranked_gap(pick)
    if mine > theirs:
        said.append(f"its gap matters (from {power(results.matters_gap)} {results.unit} on)")
    else:
        said.append("closer to float32" if mine < theirs else "no difference in loss that matters")
    share = trial.cost.memory_ratio / pick.cost.memory_ratio
    if _differs(share):
        said.append(f"{share:.2f}x its memory")
    longer = results.confirmation(trial)
    said.append(f"holds at {longer.steps} steps" if longer else "not trained longer")
    return "; ".join(said)


def _differs(ratio: float) -> bool:
    return abs(ratio - 1.0) >= 0.005
