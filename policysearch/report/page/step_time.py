"""Where the modeled time of one policy's step goes: by layer and role, beside float32."""

from __future__ import annotations

from policysearch.cost.price import PolicyCost
from policysearch.report.page.element import Html, Picture, joined, tag
from policysearch.report.page.sight import Sight
from policysearch.report.page.svg import key, label, rect, shortened, svg, titled
from policysearch.report.page.words import percent
from policysearch.study.journal.trials import Trial

PICTURE = Picture(10, "Where its time goes")

ROLES = (
    ("fprop", "fwd", "forward"),
    ("dgrad", "bwx", "backward, inputs"),
    ("wgrad", "bww", "backward, weights"),
    ("update", "upd", "optimizer"),
    ("cast", "cast", "casts"),
)
"""(role, class, words); what has another role is drawn last."""

MOST_BARS = 18

Bars = dict[str, dict[str, float]]


def draw(sight: Sight, trial: Trial) -> Html | None:
    """Return the picture; of older journals, which lack roles, by layer alone."""
    bars = _bars(trial.cost)
    if not bars:
        return None
    base = sight.float32.cost if sight.float32 else dict(sight.results.references).get("float32")
    beside = _bars(base) if base is not None else {}
    names = _largest(bars, beside)
    tops = [max(sum(b.get(n, {}).values()) for b in (bars, beside)) for n in names]
    scale = 250.0 / (max(tops, default=0.0) or 1.0)
    parts = []
    for place, name in enumerate(names):
        y = 18.0 * place
        parts.append(label(118, y + 12, shortened(name, 18), "", "end"))
        x, shapes, told = 124.0, [], []
        for role, cls, words in (*ROLES, ("", "oth", "the rest")):
            wide = bars[name].get(role, 0.0) * scale
            if wide > 0.0:
                shapes.append(rect(x, y + 2, wide, 12, cls))
                told.append(f"{words} {percent(bars[name][role])}")
                x += wide
        theirs = sum(beside.get(name, {}).values())
        if theirs > 0.0:
            shapes.append(rect(124, y + 1, theirs * scale, 14, "outline", 2))
            told.append(f"in float32 {percent(theirs)}")
        parts.append(titled(joined(shapes), f"{name}: {', '.join(told)}"))
        end = max(x, 124.0 + theirs * scale) + 6
        parts.append(label(end, y + 12, percent(sum(bars[name].values())), "small"))
    said = ", ".join(f"{n} {percent(sum(bars[n].values()))}" for n in names)
    picture = svg(440, 18.0 * len(names) + 4, *parts, label=f"Modeled time by layer: {said}")
    note = "Modeled; the numbers are shares of float32's whole step."
    if trial.cost.host_bound:
        note += " The host cannot launch kernels as fast as they run: launches set the step."
    roles = _legend(bars, bool(beside))
    return joined((picture, roles, tag("figcaption", note)))


def _bars(cost: PolicyCost) -> Bars:
    """Return the time by layer and role, as a share of float32's step; the update has a bar."""
    total = cost.step_seconds / cost.float32_step_seconds
    parts = cost.parts or tuple((layer, "", share) for layer, share in cost.layer_shares)
    bars: Bars = {}
    for layer, role, share in parts:
        name = "update" if role == "update" else layer or "loss and rest"
        known = role if role in {r for r, _, _ in ROLES} else ""
        row = bars.setdefault(name, {})
        row[known] = row.get(known, 0.0) + share * total
    return bars


def _largest(bars: Bars, beside: Bars) -> list[str]:
    """Return the names of the longest bars, in the order of the step; the others become one."""

    def longest(name: str) -> float:
        return max(sum(b.get(name, {}).values()) for b in (bars, beside))

    chosen = set(sorted(bars, key=longest, reverse=True)[:MOST_BARS])
    rest = [name for name in bars if name not in chosen]
    if not rest:
        return list(bars)
    for every in (bars, beside):
        row: dict[str, float] = {}
        for name in rest:
            for role, value in every.get(name, {}).items():
                row[role] = row.get(role, 0.0) + value
        every[f"{len(rest)} others"] = row
    return [*(name for name in bars if name in chosen), f"{len(rest)} others"]


def _legend(bars: Bars, beside: bool) -> Html:
    present = {role for row in bars.values() for role, value in row.items() if value > 0.0}
    known = (*ROLES, ("", "oth", "the rest"))
    items = [key(said, rect(0, 1, 12, 12, cls, 2)) for role, cls, said in known if role in present]
    if beside:
        items.append(key("the same layer in float32", rect(1, 1, 14, 12, "outline", 2)))
    return tag("ul", *items, cls="legend")
