"""Prices beside measured steps, as tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from benchmarks.validation.agreement import Agreement
from benchmarks.validation.measured import NetResult, accuracy

MOST: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"own": (0.08, 0.10), "generic": (0.15, 0.15)}
)
"""Largest mean error of a large and of a small net: from its own kernels, and from generic ones."""
MOST_P90 = 0.15
LEAST_FOUND, MOST_FALSE = 0.8, 0.15
LEAST_RANK = 0.95


def measured_page(results: Sequence[NetResult]) -> str:
    """Return what was measured and how far the prices are from it; the mean error comes last."""
    blocks = [_steps(results)]
    for title, way in (
        ("priced from the net's own kernels, timed between its steps", "own"),
        ("priced from generic kernels alone", "generic"),
    ):
        lines = [title]
        for result in results:
            lines += [f"  {line}" for line in _net(result, way)]
        blocks.append("\n".join(lines))
    found = accuracy(results)
    last = f"mean error {found.mean_error:.1%} (generic kernels, {found.policies} policies)"
    return "\n\n".join([*blocks, last])


def _steps(results: Sequence[NetResult]) -> str:
    lines = ["measured: speedup over float32, lower quartiles of interleaved rounds"]
    for r in results:
        again = _difference(r.own_halves[0], r.own_halves[1])
        lines.append(
            f"  {r.name}: {len(r.speedups)} policies, {min(r.speedups):.2f} to "
            f"{max(r.speedups):.2f}, all low {r.speedups[0]:.2f}; float32 step "
            f"{r.float32_seconds * 1e3:.3g} ms, last loss {r.final_loss:.3g}; retest of the steps "
            f"{r.own_agreement.retest_error:.1%}, of the kernels {again:.1%}"
        )
    return "\n".join(lines)


def _net(result: NetResult, way: str) -> Iterator[str]:
    a: Agreement = getattr(result, f"{way}_agreement")
    most = max(MOST[way][result.small], a.retest_error)
    yield (
        f"{result.name}: mean error {a.mean_error:.1%} ({_kept(a.mean_error <= most)}: at most "
        f"{most:.1%}), p90 {a.p90_error:.1%} ({_kept(a.p90_error <= MOST_P90)}: at most "
        f"{MOST_P90:.0%})"
    )
    share = a.found / a.slower if a.slower else 1.0
    false = a.false / a.called if a.called else 0.0
    yield (
        f"  {a.slower} slower than float32 beyond the noise, {a.found} of them called slower "
        f"({_kept(share >= LEAST_FOUND)}: at least {LEAST_FOUND:.0%}); of {a.called} calls "
        f"{a.faster} measured faster, {a.false} beyond the noise ({_kept(false <= MOST_FALSE)}: at "
        f"most {MOST_FALSE:.0%})"
    )
    yield (
        f"  rank correlation {a.rank:.3f}, retest {a.retest_rank:.3f} "
        f"({_kept(a.rank >= LEAST_RANK * a.retest_rank)}: at least {LEAST_RANK} of it), FLOP share "
        f"{a.flops_rank:.3f}; among equal shares {a.rank_within:.2f} "
        f"({_kept(a.rank_within > 0)}: FLOP share has 0), retest {a.retest_rank_within:.2f}"
    )


def _kept(kept: bool) -> str:
    return "kept" if kept else "missed"


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.mean(np.abs(np.asarray(one) / np.asarray(other) - 1)))
