"""What runs of a trial lost by layer, and what led to the first value not finite, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from policysearch.export.reading import grouped
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.presets import PRESETS, preset
from policysearch.report.runs_in import Runs, RunsIn, runs_of, tracing_of
from policysearch.report.text import aligned
from policysearch.space.target import kept_wide
from policysearch.study.journal.trials import Trial
from policysearch.study.specification import StudySpec, objective_of
from policysearch.train.lost_values import LostValues
from policysearch.train.origin import Link, first_harm
from policysearch.values import NO_LAYER, InputError

KINDS = ("overflow", "born", "underflow", "swamped", "decay", "state")
ROLES = ("fprop", "dgrad", "wgrad", "update")


def layer_lines(spec: StudySpec, trial: Trial) -> list[str]:
    """Return one line per layer: its formats, what over- and underflowed, its share of the time.

    Formats are those that it runs in, by the graph of the step; those of the policy where that
    cannot be made. Before them comes what products run in, after them the `kept_wide_lines`.
    """
    formats = dict(trial.policy.layers)
    runs = runs_of(tracing_of(spec, own_code=True), trial.policy)
    over = _sums(pair for score in trial.scores for pair in score.overflows)
    under = _sums(pair for score in trial.scores for pair in score.underflows)
    shares = dict(trial.cost.layer_shares)
    rows = [
        (
            layer or NO_LAYER,
            *_formats(formats.get(layer), (runs or {}).get(layer)),
            str(over.get(layer, 0)),
            str(under.get(layer, 0)),
            f"{shares.get(layer, 0.0):.1%}",
        )
        for layer in dict.fromkeys([*formats, *over, *under, *shares])
    ]
    named = ("runs in", "gradients") if runs else ("products in", "of gradients")
    titles = ("layer", *named, "param", "overflows", "underflows", "modeled time")
    summary = product_lines(formats, runs) if runs else []
    return [*summary, *aligned([titles, *rows]), *kept_wide_lines(spec, trial)]


def product_lines(formats: Mapping[str, LayerPolicy], runs: Runs) -> list[str]:
    """Return in what products run, fewest layers last, and which others are not as they are named.

    A norm that a policy's name has in float32 may be of 16-bit results between two products.
    """
    products = Counter("+".join(row.forward) for row in runs.values() if row.product)
    named = {name: row for name, row in runs.items() if not row.product and name in formats}
    others: dict[str, list[str]] = {}
    for name, row in named.items():
        if row.weights and row.forward and formats[name].compute not in row.forward:
            said = f"named {formats[name].compute}, runs in {'+'.join(row.forward)}"
            others.setdefault(said, []).append(name)
    counts = ", ".join(f"{count} in {name}" for name, count in products.most_common())
    return [
        f"layers with products: {counts}",
        *(f"{', '.join(names)}: {said}" for said, names in others.items()),
    ]


def kept_wide_lines(spec: StudySpec, trial: Trial) -> list[str]:
    """Return which layers the target of a study runs wider than others of a trial, and why."""
    if spec.study.target is None:
        return []
    try:
        model = objective_of(spec).model
    except InputError:  # of another net, or one that cannot be made here
        return []
    names = [name for name in trial.presets if name in PRESETS]
    asked = [trial.policy, *(preset(name, model.layer_names) for name in names)]
    lines = (line for p in asked for line in kept_wide(p, model, spec.study.target))
    return grouped(list(dict.fromkeys(lines)))


def _formats(layer: LayerPolicy | None, runs: RunsIn | None) -> tuple[str, ...]:
    """Return what a layer runs in, forward and backward, and what its parameters are read in."""
    if layer is None:
        return ("-", "-", "-")
    ways = (runs.forward, runs.backward) if runs else ((layer.compute,), (layer.grad,))
    return (*("+".join(way) or "-" for way in ways), layer.param)


def _sums(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for layer, count in pairs:
        sums[layer] = sums.get(layer, 0) + count
    return sums


def lost_lines(trial: Trial) -> list[str]:
    """Return one line per kind, layer, op and role that lost values, summed over the seeds.

    Before them what led to the first value that was not finite, if any was.
    """
    rows = _sum_by_place(row for score in trial.scores for row in score.lost)
    if not rows:
        return [*chain_lines(trial), f"values lost in the probed steps: {_none_lost(trial)}"]
    titles = ("lost", "layer", "op", "role", "count", "of those looked at", "first step", "largest")
    cells = [
        (
            row.kind,
            row.layer or NO_LAYER,
            row.op or "-",
            row.role,
            str(row.count),
            f"{100.0 * row.count / row.seen:.2g}%",
            str(row.first_step),
            f"{row.largest:.3g}",
        )
        for row in sorted(rows, key=_place)
    ]
    head = "values lost in the probed steps, before rounding:"
    return [*chain_lines(trial), head, *aligned([titles, *cells])]


def _none_lost(trial: Trial) -> str:
    """Say that nothing is counted, which is not to say that nothing was lost."""
    if any(score.overflows or score.underflows for score in trial.scores):
        return "not recorded by role, for the runs are older"
    return "none but by rounding, which is not counted here"


def chain_lines(trial: Trial) -> list[str]:
    """Return what led to the first value that was not finite, a line per op."""
    origins = [origin for score in trial.scores for origin in score.origins]
    first = first_harm(origins)
    if first is None:
        return []
    kept = ", and was skipped" if first.skipped else ""
    return [f"first value not finite{kept}: {first.words}", *chain_table(first.chain)]


def chain_table(chain: Sequence[Link]) -> list[str]:
    """Return the ops of a chain, a line each, after those of the user's file where one is known."""
    titles = ("what led there", "layer", "role", "format", "largest in", "largest out", "lost")
    cells = [
        (
            link.op,
            link.layer or NO_LAYER,
            link.role,
            link.format,
            f"{link.largest_in:.3g}",
            f"{link.largest_out:.3g}",
            f"{link.lost} of {link.of}",
        )
        for link in chain
    ]
    lines = [link.line for link in chain]
    if not any(lines):
        return aligned([titles, *cells])
    rows = [(line or "-", *row) for row, line in zip(cells, lines, strict=True)]
    return aligned([("your line", *titles), *rows])


def _place(row: LostValues) -> tuple[int, str, int, str]:
    places = {role: place for place, role in enumerate(ROLES)}
    return KINDS.index(row.kind), row.layer, places.get(row.role, -1), row.op


def _sum_by_place(rows: Iterable[LostValues]) -> list[LostValues]:
    """Return the rows of several runs as those of one."""
    sums: dict[tuple[str, str, str, str], LostValues] = {}
    for row in rows:
        key = row.kind, row.layer, row.role, row.op
        old = sums.get(key)
        sums[key] = row if old is None else _sum(old, row)
    return list(sums.values())


def _sum(one: LostValues, other: LostValues) -> LostValues:
    return LostValues(
        one.kind,
        one.layer,
        one.role,
        one.count + other.count,
        one.seen + other.seen,
        min(one.first_step, other.first_step),
        max(one.largest, other.largest),
        one.op,
    )
