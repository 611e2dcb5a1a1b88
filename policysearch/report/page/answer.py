"""The answer: what a study comes to, what speaks against it, and how to apply it."""

from __future__ import annotations

import json
from urllib.parse import quote

from policysearch.cost.price import speedup_over
from policysearch.export.torch_runs import draws_updates
from policysearch.policy.presets import TF32
from policysearch.report.against import FLOAT32
from policysearch.report.page.element import Child, Html, Section, code, joined, tag
from policysearch.report.page.running import running
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import label, line, named, rect, shortened, svg, titled
from policysearch.report.page.words import gap, mib, times, typeset
from policysearch.study.journal.trials import Trial

SECTION = Section(10, "answer", "", "Answer")

HEADS = {
    "take": "Take trial {0}: {1}",
    "switch": "Take TF32, one switch: trial {0}",
    "at a cost": "Faster only at a cost: trial {0}, {1}",
    "keep": "Keep what you run: {2}",
    "not learned": "float32 has not learned here",
    "cannot rank": "These seeds cannot rank the policies",
    "nothing works": "Nothing works: keep float32",
    "undecided": "Not decided yet",
}
"""The headline by the kind of the verdict: of {0} trial, {1} its formats, {2} its name."""


def body(sight: Sight) -> Html:
    """Return the verdict with its numbers; without a policy the sentence alone."""
    verdict, pick = sight.results.verdict, sight.pick
    said = sight.formats_said(pick) if pick else ""
    number = pick.number if pick else ""
    kind = "switch" if verdict.kind == "take" and verdict.switch else verdict.kind
    head = HEADS.get(kind, "{2}").format(number, said, verdict.policy)
    if verdict.kind == "undecided" and pick is not None:
        head = f"Not decided yet; so far trial {number}: {said}"
    left = joined(
        (
            tag("h2", head, id="answer-title", cls="answer"),
            tag("p", _sentence(str(verdict)), cls="said"),
            _warnings(sight),
        )
    )
    if pick is None:
        return joined((left, _now(sight)))
    return joined(
        (
            tag("div", tag("div", left), _rivals(sight, pick), cls="two"),
            _tiles(sight, pick),
            tag("h3", f"Which layers of trial {pick.number} run in what?"),
            running(sight, pick),
            _others(sight, pick),
            _apply(sight, pick),
        )
    )


def _now(sight: Sight) -> Html:
    """Return what to do where no policy can be put first: what is kept, and what comes next."""
    kind = sight.results.verdict.kind
    change = (
        "Change the recipe in the study file as said above and run it again: another recipe is "
        "another study, so give it a name of its own."
    )
    said = {"cannot rank": change, "not learned": change, "undecided": "Let the search go on."}
    more = said.get(kind)
    parts: list[Child] = [tag("h3", "What to do now"), tag("p", typeset(_kept(sight)))]
    if more:
        parts += [tag("p", more), code("To train", "train", sight.command("run {0}"))]
    return joined(parts)


def _kept(sight: Sight) -> str:
    """Say what to run until more is known, and what is known of it."""
    name = sight.results.spec.study.baseline or FLOAT32
    base = next((t for t in sight.results.trials if name in t.presets), None)
    if name == FLOAT32:
        return "Until more is known, keep float32."
    if base is None:
        return f"Until more is known, keep what you run, {name}, which was not trained to its end."
    if base.diverged:
        said = f"Your baseline {name}, trial {base.number}, does not train here"
        return f"{said}: {base.divergence}. Until more is known, keep float32."
    cost, measured = base.cost, gap(base.loss_gap)
    return (
        f"Until more is known, keep what you run, {name}: trial {base.number} is modeled at "
        f"{times(cost.speedup)} the speed of float32 ({cost.speedup_low:.2f} to "
        f"{cost.speedup_high:.2f}) and {times(cost.memory_ratio)} its memory. Its loss gap, "
        f"{measured} {sight.results.unit} as measured, is not ranked: it speaks neither for "
        "it nor against it."
    )


def _sentence(said: str) -> str:
    said = typeset(said)
    return f"{said[0].upper()}{said[1:]}{'' if said.endswith('.') else '.'}"


def _warnings(sight: Sight) -> Html | None:
    if not sight.warnings:
        return None
    lines = [tag("li", _sentence(line)) for line in sight.warnings]
    return tag("div", tag("p", "What speaks against it:"), tag("ul", *lines), cls="warn")


def _tile(big: str, what: Child, note: str) -> Html:
    return tag(
        "div",
        tag("dt", what, tag("span", f" {note}", cls="note")),
        tag("dd", big, cls="big"),
        cls="tile tilebox",
    )


def _tiles(sight: Sight, pick: Trial) -> Html:
    results, cost = sight.results, pick.cost
    tiles = [
        _tile(
            times(cost.speedup),
            "the speed of float32,",
            f"modeled, {cost.speedup_low:.2f} to {cost.speedup_high:.2f}",
        )
    ]
    for over in results.speedups(pick):
        if over.over != "float32" and over.over not in pick.presets:
            name = "TF32" if over.over == TF32 else over.over
            sure = " and may be no faster" if over.low <= 1.0 < over.value else ""
            note = f"modeled, {over.low:.2f} to {over.high:.2f}{sure}"
            what = joined(("the speed of ", named(name, name), ","))
            tiles.append(_tile(times(over.value), what, note))
    tiles.append(
        _tile(
            times(cost.memory_ratio),
            "the memory of float32,",
            f"modeled at the peak: {mib(cost.peak_bytes)} for {mib(cost.float32_peak_bytes)}",
        )
    )
    interval, confirmed = results.interval(pick), results.confirmation(pick)
    sure = f"{gap(interval.low)} to {gap(interval.high)} at 95%" if interval else "one seed"
    steps = results.spec.task.steps
    tiles.append(
        _tile(gap(pick.loss_gap), f"{sight.results.unit} of loss gap at {steps} steps,", sure)
    )
    if confirmed is not None:  # beside what float32 itself has left there
        held = typeset(results.fault(pick)) or "holds"
        tiles.append(
            _tile(gap(confirmed.loss_gap), f"{results.unit} at {confirmed.steps} steps:", held)
        )
    return tag("dl", *tiles, cls="tiles")


def _rivals(sight: Sight, pick: Trial) -> Html:
    """Draw the speed of the pick beside what else there is, with its interval."""
    bars: list[tuple[str, float, float, float]] = [("float32", 1.0, 1.0, 1.0)]
    bars += [(name, speed, speed, speed) for name, speed in sight.references]
    cost = pick.cost
    bars.append((f"trial {pick.number}", cost.speedup, cost.speedup_low, cost.speedup_high))
    scale = 384.0 / max(high for _, _, _, high in bars)
    parts = []
    for place, (name, speed, low, high) in enumerate(bars):
        y, mine = 14.0 + 44.0 * place, place == len(bars) - 1
        span = f", {low:.2f} to {high:.2f}" if high > low else ""
        shapes = [rect(0, y + 7, speed * scale, 15, "bar first" if mine else "bar", 2)]
        if span:
            shapes.append(line(low * scale, y + 14.5, high * scale, y + 14.5, "base"))
            shapes += [line(x * scale, y + 9, x * scale, y + 20, "base") for x in (low, high)]
        words = f"{shortened(name, 40)} {times(speed)}{span}"
        parts.append(label(0, y, words, "strong" if mine else ""))
        parts.append(titled(joined(shapes), f"{name}: modeled {times(speed)} float32{span}"))
    said = ", ".join(f"{name} {times(speed)}" for name, speed, *_ in bars)
    picture = svg(400.0, 44.0 * len(bars) + 6, *parts, label=f"Modeled speed: {said}")
    note = (
        "Modeled speed of one training step, in float32's; the line across the last bar is the "
        "interval of the model."
    )
    return tag("figure", picture, tag("figcaption", note))


def _others(sight: Sight, pick: Trial) -> Html | None:
    """Return the other members that hold, a line each."""
    results = sight.results
    others = [t for t in results.sound_front() if t is not pick and "float32" not in t.presets]
    if not others:
        return None
    lines = []
    for trial in others[:4]:
        over = speedup_over(trial.cost, pick.cost, "").value
        beside = "as fast as" if abs(over - 1.0) < 0.005 else f"{times(over)} the speed of"
        said = (
            f": {trial.label}; {times(trial.cost.speedup)} float32, {beside} trial {pick.number}, "
            f"{times(trial.cost.memory_ratio)} memory, gap {gap(trial.loss_gap)} {results.unit}"
        )
        link = tag("a", f"Trial {trial.number}", href=sight.href(trial.number))
        lines.append(tag("li", link, said, data_t=trial.number))
    return joined((tag("h3", "Or, sound as well"), tag("ul", *lines)))


def _apply(sight: Sight, pick: Trial) -> Html:
    study = sight.results.spec.study
    target = study.target or "torch"
    export = f"export {{0}} --trial {pick.number} --target {target}"
    parts = [code(f"Writes the policy and code for {target}", "apply", sight.command(export))]
    if switch := sight.results.verdict.switch:
        parts.insert(0, code("One line in the training script is enough", "switch", switch))
    elif target == "torch":
        lines = (
            f"import precision  # results/{study.name}-torch.py, copied beside it so named\n\n"
            "model = precision.apply_policy(model, device_type='cuda')  # in place of autocast\n"
            "scaler = precision.make_grad_scaler('cuda')  # does nothing without a loss scale\n"
            "# now make the optimizer"
        )
        if draws_updates(pick.policy):  # without it the file rounds to nearest, and updates vanish
            lines += "\noptimizer = precision.store_updates(optimizer)"
        parts.append(code("Then in the training script", "lines", lines))
    plain = json.dumps(json.loads(pick.policy.to_json()), separators=(",", ":"))
    download = tag(
        "a",
        "Download the policy as JSON",
        cls="button",
        download=f"{study.name}-policy.json",
        href="data:application/json," + quote(plain, safe="{}[]:,"),
    )
    if study.baseline is not None and study.baseline in pick.presets:
        return joined((tag("h3", "Nothing to apply: you run it"), download))
    return joined((tag("h3", "Apply it"), tag("div", *parts, cls="two"), download))
