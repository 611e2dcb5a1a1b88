"""What the policies of a small study come to on a large net, as text."""

from __future__ import annotations

from collections.abc import Iterator

from policysearch.report.text import aligned, or_dash
from policysearch.study.questions.carry import Agreement, Carried, Moved, comparable

HEADER = ("policy", "masters", "speedup", "memory", "gap, small", "gap, large")


def carried_page(carried: Carried) -> str:
    """Return the verdict, the policies by their gaps in the small net, and what is to be known.

    A gap in the large net stands only where it was trained there.
    """
    blocks = [[f"verdict: {carried.verdict}", *_fastest_words(carried), *_kinds(carried)]]
    if carried.moved:
        blocks.append(aligned([HEADER, *(_row(each) for each in carried.moved)]))
        unit = carried.small.unit
        alike = [f"{gap:.1e}" for gap in carried.counts_from]
        blocks.append([f"Gaps in {unit}, of short runs; time and memory modeled on the large net."])
        blocks[-1].extend(_left_out(carried))
        if carried.large is not None:
            said = f"Gaps up to {alike[0]} in the small net, {alike[1]} in the large, count as one."
            blocks[-1].append(said)
    blocks.append(list(_notes(carried)))
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _left_out(carried: Carried) -> Iterator[str]:
    """Say how many of the small study's policies are not listed, and why."""
    every = len(comparable(carried.small))
    if (listed := len(carried.moved)) < every:
        why = "beaten, by more than the standard error, by one that costs no more"
        yield f"{listed} of the small study's {every} are listed; each of the others is {why}."


def _fastest_words(carried: Carried) -> Iterator[str]:
    """Say what is the fastest of what was trained there, at a gap that does not matter."""
    large = carried.large
    if large is None or carried.kind != "carries":
        return
    ended = [(e.cost.speedup, e) for e in carried.trained if e.cost is not None]
    for speedup, each in sorted(ended, key=lambda pair: -pair[0]):
        if each.there is not None and each.there.loss_gap <= large.matters_gap:
            gap = f"gap {each.there.loss_gap:+.1e} {large.unit}, at most {large.matters_gap:.1e}"
            yield f"confirmed there: {each.trial.label}, {speedup:.2f}x modeled, {gap}"
            return
    yield f"nothing that was trained there has a gap of at most {large.matters_gap:.1e}"


def _kinds(carried: Carried) -> Iterator[str]:
    """Say of those with masters and without what their own ranks are."""
    of_kind: tuple[tuple[str, Agreement | None], ...] = (
        ("with masters", carried.with_masters),
        ("without masters", carried.without),
    )
    for name, found in of_kind:
        if found is not None and len(carried.trained) > found.count:
            yield f"{name}: {found}" + f"; {found.noise}" * bool(found.noise)


def _row(each: Moved) -> tuple[str, ...]:
    cost, there = each.cost, each.there
    gap = "not trained" if there is None else "diverged" if there.diverged else ""
    return (
        each.trial.label,
        "yes" if each.masters else "no",
        or_dash(cost.speedup if cost else None, 2),
        or_dash(cost.memory_ratio if cost else None, 2),
        f"{each.trial.loss_gap:+.1e}",
        gap or (f"{there.loss_gap:+.1e}" if there else ""),
    )


def _notes(carried: Carried) -> Iterator[str]:
    """Say what does not reach the large net, and what became of stacks of another depth."""
    for each in carried.moved:
        if each.why:
            yield f"{each.trial.label} is no policy of the large net: {each.why}"
    of_note: dict[str, list[str]] = {}
    for each in carried.moved:
        for note in each.notes:
            of_note.setdefault(note, []).append(each.trial.label)
    yield from (f"{note} ({', '.join(labels)})" for note, labels in of_note.items())
