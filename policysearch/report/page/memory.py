"""What is live at the peak of one policy's step, beside float32; modeled."""

from __future__ import annotations

from policysearch.cost.price import PolicyCost
from policysearch.report.page.element import Html, Picture, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import key, label, rect, svg, titled
from policysearch.report.page.words import mib, times
from policysearch.report.step_cost import fitting
from policysearch.study.journal.trials import Trial

PICTURE = Picture(40, "Memory")

KINDS = {
    "parameter": ("fwd", "parameters"),
    "master": ("oth", "master weights"),
    "optimizer": ("upd", "optimizer state"),
    "gradient": ("cast", "gradients"),
    "weight_copy": ("bww", "low copies of parameters"),
    "activation": ("bwx", "activations and the rest"),
    "mask": ("bar", "dropout masks"),
}
"""Class and words by kind of live bytes."""


def draw(sight: Sight, trial: Trial) -> Html:
    """Return two bars, float32's and the policy's; of older journals their lengths alone."""
    cost = trial.cost
    base = sight.float32.cost if sight.float32 else dict(sight.results.references).get("float32")
    pairs = [("float32", base.live if base else (), cost.float32_peak_bytes)]
    if "float32" not in trial.presets:
        pairs.append((f"trial {trial.number}", cost.live, cost.peak_bytes))
    scale = 250.0 / max(total for _, _, total in pairs)
    parts = []
    for place, (name, live, total) in enumerate(pairs):
        y, x = 28.0 * place, 80.0
        parts.append(label(74, y + 15, name, "", "end"))
        known = [(*KINDS.get(kind, ("oth", kind)), count) for kind, count in live]
        for cls, kind, count in known or [("bar first" if place else "bar", "in all", total)]:
            part = rect(x, y + 3, count * scale, 17, cls)
            parts.append(titled(part, f"{name}: {kind} {mib(count)}"))
            x += count * scale
        parts.append(label(x + 6, y + 16, mib(total), "small"))
    said = ", ".join(f"{name} {mib(total)}" for name, _, total in pairs)
    picture = svg(440, 28.0 * len(pairs) + 4, *parts, label=f"Modeled peak memory: {said}")
    return joined((picture, _legend(cost), tag("figcaption", _note(cost))))


def _note(cost: PolicyCost) -> str:
    low, high = mib(cost.reserved_low_bytes), mib(cost.reserved_high_bytes)
    return (
        f"Modeled, live at the peak of a step: {times(cost.memory_ratio)} of float32's. A process "
        f"reserves {low} to {high} where the card has as much. It {fitting(cost)} on {cost.device}."
    )


def _legend(cost: PolicyCost) -> Html | None:
    items = [
        key(said, rect(0, 1, 12, 12, cls, 2))
        for cls, said in (KINDS.get(kind, ("oth", kind)) for kind, count in cost.live if count)
    ]
    return tag("ul", *items, cls="legend") if items else None
