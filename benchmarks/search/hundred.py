"""A made-up problem of 100 layers in five formats: prices are the product's, gaps are drawn.

    python -m benchmarks.search.hundred --trials 40 --seeds 3

What is asked for is what a study asks for (its proposer, price table and Viterbi's algorithm); the
gap of a policy is told by a drawn truth. A layer's sensitivity in a format is log-normal, their sum
saturates as gaps of real nets do, and neighbours in one format take a share off each other. Shares
are of the volume of the best known front: the best for many weights by the truth itself.

The rows: `own` without probes, `own ~f` with probes that are off by a factor f in the root mean
square, and `knows ~f`, someone who has the same probes and trains what is best by them, learning
nothing. With --within GAP each second policy is asked for the fastest within so many nats. Behind
the shares of the volume stand the fastest policies found within 3e-4 and 1e-3 nats, the fastest
there are, and the CPU seconds of an ask, in the middle and of the first.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.layered import Layered, Rows, Trained, studied
from benchmarks.timing import pin_one_thread
from policysearch.policy.policy import Policy
from policysearch.search.goals import Goal
from policysearch.search.hypervolume import Array, improvements, non_dominated
from policysearch.space.decided.base import Params
from policysearch.study.specification import spec_from_text

LAYERS = 100
FORMATS = ("float32", "tfloat32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
STUDY = """
[study]
name = "hundred"

[task]
model = "mlp"
activation = "tanh"
widths = {widths}
data = "digits"
batch_size = 4096

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 16384
batch_size_reason = "products as large as a language model's"

[space]
formats = {formats}
scalings = ["current"]
"""

SUMS = (0.0, 1e-5, 4e-4, 0.04, 0.12)
"""Sum over all layers of what each format costs, in nats, before it saturates."""

LAYER_SD, OWN_SD = 2.0, 0.5
"""Standard deviations of the logarithm of a sensitivity: of the layer, and of it in one format."""

SATURATES = 0.08
"""In nats: a sum of so much costs .69 of itself."""

SHARED = 0.2
"""What neighbours in one format of 8 bits take off each other, over the root of their product."""

NOISE = 0.03
"""Standard deviation of the logarithm of a gap beside what its layers cost."""

WITHIN = (3e-4, 1e-3)
"""Gaps in nats within which the fastest policy is looked for."""

AT = (3, 5, 10, 20, 40, 60)
"""After so many trainings the volume is told."""

Front = tuple[Array, Array]
"""Gaps [n] and costs [n, 2]."""


@dataclass(frozen=True)
class Truth:
    """What each format costs each layer: `costs` [layers, formats] in nats."""

    costs: Array
    seed: int

    def gaps(self, rows: Rows) -> Array:
        """Return the gaps [n] in nats of formats [n, layers]."""
        each = self.costs[np.arange(rows.shape[1]), rows]
        low = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= FORMATS.index("float8_e4m3fn"))
        sums = each.sum(axis=1) - SHARED * (low * np.sqrt(each[:, 1:] * each[:, :-1])).sum(axis=1)
        noise = [np.random.default_rng([self.seed, *row]).standard_normal() for row in rows]
        return np.asarray(SATURATES * np.log1p(sums / SATURATES) * np.exp(NOISE * np.array(noise)))


def truth(seed: int) -> Truth:
    """Return the truth drawn with `seed`."""
    rng = np.random.default_rng([seed, 100])
    layer = LAYER_SD * rng.standard_normal((LAYERS, 1))
    logs = layer + OWN_SD * rng.standard_normal((LAYERS, len(FORMATS)))
    sizes = np.exp(logs)
    return Truth(sizes / sizes.sum(axis=0) * SUMS, seed)


class Hundred(Layered):
    """The space with its prices, which all truths share."""

    def __init__(self) -> None:
        widths, formats = [2048] * (LAYERS - 1), str(list(FORMATS)).replace("'", '"')
        super().__init__(spec_from_text(STUDY.format(widths=widths, formats=formats), "hundred"))

    def share(self, gaps: Array, costs: Array, front: Front) -> float:
        """Return the share of the volume of the `front` that policies dominate."""
        return self.measure.volume(gaps, costs) / self.measure.volume(*front)


def true_front(hundred: Hundred, drawn: Truth) -> Front:
    """Return gaps and costs of the best known front."""
    rows, costs = hundred.best(drawn.costs)
    gaps = drawn.gaps(rows)
    kept = non_dominated([tuple(p) for p in hundred.measure.points(gaps, costs).tolist()])
    return gaps[kept], costs[kept]


def probes_of(drawn: Truth, error: float, seed: int) -> Array:
    """Return what probes say of each sensitivity, off by a factor exp(error) in the root mean."""
    rng = np.random.default_rng([seed, 200])
    return np.asarray(drawn.costs * np.exp(error * rng.standard_normal(drawn.costs.shape)))


def hints_of(hundred: Hundred, probed: Array) -> Array:
    """Return logarithms of probes in the order of `Decisions.counted`: [decisions, 1]."""
    counted = hundred.encoding.decisions.counted()
    return np.array([[math.log(probed[place, option])] for place, option in counted])


def own(
    hundred: Hundred,
    drawn: Truth,
    trials: int,
    hints: Array | None = None,
    goal: Goal | None = None,
) -> Trained:
    """Return what a study of so many trials trains."""

    def told(params: Params, _: Policy) -> float:
        return float(drawn.gaps(hundred.row(params))[0])

    return studied(hundred, told, trials, hints, goal=goal)


def knowing(hundred: Hundred, drawn: Truth, trials: int, probed: Array) -> Trained:
    """Return what someone trains who believes probes: greedily what adds most volume by them."""
    rows, costs = hundred.best(probed)
    thought = hundred.measure.points(Truth(probed, drawn.seed).gaps(rows), costs)
    chosen: list[int] = []
    for _ in range(trials):
        gains = improvements(thought, thought[chosen], hundred.measure.corner)
        gains[chosen] = -1.0
        chosen.append(int(gains.argmax()))
    gaps = np.concatenate([[0.0], drawn.gaps(rows[chosen])])
    return Trained(gaps, np.concatenate([[[1.0, 1.0]], costs[chosen]]), np.zeros(trials + 1))


def report(
    hundred: Hundred, name: str, trained: Sequence[Trained], fronts: Sequence[Front]
) -> None:
    """Print one row: the mean over truths."""
    at = [n for n in AT if n < len(trained[0].gaps)]
    pairs = list(zip(trained, fronts, strict=True))
    shares = [
        np.mean([hundred.share(t.gaps[: n + 1], t.costs[: n + 1], front) for t, front in pairs])
        for n in at
    ]
    speeds = [np.mean([t.fastest(gap) for t in trained]) for gap in WITHIN]
    middle = np.mean([np.median(t.seconds) for t in trained])
    first = max(t.seconds.max() for t in trained)
    said = " ".join(f"{n}: {share:.3f}" for n, share in zip(at, shares, strict=True))
    fast = ", ".join(f"{speed:.1f}x" for speed in speeds)
    print(f"{name:10} {said} | {fast} | {middle:.2f} s, {first:.1f} s", flush=True)


def main() -> None:
    """Print every row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3, help="so many truths")
    parser.add_argument("--within", type=float, help="ask for the fastest within this gap in nats")
    parser.add_argument("--off", type=float, nargs="*", default=[1.6, 2.7], help="factors")
    options = parser.parse_args()
    pin_one_thread()
    hundred = Hundred()
    truths = [truth(seed) for seed in range(options.seeds)]
    fronts = [true_front(hundred, drawn) for drawn in truths]
    there = [Trained(*front, np.zeros(1)) for front in fronts]
    fast = ", ".join(f"{np.mean([t.fastest(gap) for t in there]):.1f}x" for gap in WITHIN)
    print(f"share of the volume after trainings | within {WITHIN}, of {fast} | asks")
    trials, within = options.trials, options.within
    goal = None if within is None else Goal("time", gap=within)
    report(hundred, "own", [own(hundred, each, trials, goal=goal) for each in truths], fronts)
    for off in options.off:
        probed = [probes_of(each, math.log(off), each.seed) for each in truths]
        with_probes = [
            own(hundred, each, trials, hints_of(hundred, probe), goal)
            for each, probe in zip(truths, probed, strict=True)
        ]
        report(hundred, f"own ~{off:g}", with_probes, fronts)
        alone = [
            knowing(hundred, each, trials, probe)
            for each, probe in zip(truths, probed, strict=True)
        ]
        report(hundred, f"knows ~{off:g}", alone, fronts)


if __name__ == "__main__":
    main()
