"""Do published directions hold on small nets? One line per net and direction, and a count.

    python -m benchmarks.directions --steps 300 --seeds 0 1 2

Healing: of NVFP4 trainings that turn part of their products to bfloat16 in the last fifth of the
run, late forward products are to help more than late gradient products (arXiv 2509.25149, appendix
D). Gradients: beside float8_e4m3fn operands under MXFP8, float8_e4m3fn gradients are to do no worse
than float8_e5m2 (Transformer Engine #2754). Moments: second moments in bfloat16 are to cost nothing
that shows in a run of a tenth of the steps, and more at the end (marin #8955). Two early signs of
it are looked at after a tenth of the long run, on healthy controls too. "low": the share of moments
that cannot fall, since beta2 times their value rounds back to it, times what the rate is low by at
the end where they stay; `FORETOLD` of it is a sign. "drift": how far the rate is off so far, beside
float32 moments. Controls: those, bfloat16 first moments, rounding by chance, a beta2 of 0.95.

A gap is that of the tail-averaged training loss to float32's with the same seed and batches, in
nats; a direction holds on a net where its mean over seeds goes that way by more than its standard
error, is reversed where it goes the other way by more, and is open between. What is printed is what
was found: nothing is tuned until it holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray
from policysearch.objective.objective import Objective
from policysearch.objective.score import gap
from policysearch.policy.policy import Phase, Policy, RoleRounding
from policysearch.policy.presets import preset
from policysearch.policy.product_words import with_words
from policysearch.report.text import aligned
from policysearch.rounding.rounder import quantise
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

HEALED_FROM = 0.8
EARLY = 0.1
FORETOLD = 0.1
FORWARD, BACKWARD = "fprop=bfloat16", "dgrad=bfloat16 wgrad=bfloat16"
BFLOAT16 = "torch.autocast.bfloat16"


def nets(steps: int) -> dict[str, Task]:
    """Return five small nets and their recipes: Adam with decay, warm-up and half a cosine."""
    schedule = Schedule("cosine", warmup_steps=max(1, steps // 10), final_factor=0.01)
    usual = Task(
        data="digits",
        optimizer="adamw",
        weight_decay=0.01,
        weight_decay_for="matrices",
        schedule=schedule,
        batch_size=64,
        steps=steps,
        tail_steps=max(1, steps // 10),
    )
    mlp = replace(usual, model="mlp", learning_rate=0.002)
    return {
        "mlp-tanh": replace(mlp, activation="tanh", widths=(128, 128)),
        "mlp-relu": replace(mlp, activation="relu", widths=(128, 128)),
        "mlp-deep": replace(mlp, activation="gelu", widths=(64, 64, 64, 64)),
        "lenet5": replace(usual, model="lenet5", data="digits32", learning_rate=0.002),
        "gpt": replace(
            usual,
            model="gpt",
            activation="gelu",
            widths=(32, 64, 64),
            data="sums",
            loss="token_cross_entropy",
            learning_rate=0.004,
            batch_size=8,
        ),
    }


@dataclass(frozen=True)
class Found:
    """What one net says of one direction: by seed, how far it goes as published (positive).

    Of moments: whether they are `fine` at a tenth of the steps, `behind` at the end, and `foretold`
    to be at a tenth; so many controls raised an alarm.
    """

    net: str
    direction: str
    margins: tuple[float, ...]
    note: str = ""
    fine: bool = False
    behind: bool = False
    foretold: bool = False
    alarms: int = 0

    @property
    def mean(self) -> float:
        return float(np.mean(self.margins))

    @property
    def error(self) -> float:
        count = len(self.margins)
        return float(np.std(self.margins, ddof=1) / count**0.5) if count > 1 else float("inf")

    @property
    def verdict(self) -> str:
        """ "holds", "reversed", or "open" within one standard error."""
        if abs(self.mean) <= self.error:
            return "open"
        return "holds" if self.mean > 0 else "reversed"


def healed(policy: Policy, words: str, steps: int) -> Policy:
    """Return the policy whose products that the words name are wide in the last fifth."""
    late = tuple((name, with_words(layer, words)) for name, layer in policy.layers)
    return replace(policy, phases=(Phase(max(1, round(HEALED_FROM * steps)), late),))


def healing(net: str, objective: Objective, seeds: Sequence[int]) -> Iterator[Found]:
    """Yield by how much less a late forward pass leaves of the gap than a late backward pass."""
    low = preset("te.nvfp4", objective.model.layer_names)
    steps = objective.task.steps
    policies = [low, *(healed(low, words, steps) for words in (FORWARD, BACKWARD))]
    gaps = np.array([[gap_of(objective, policy, seed) for policy in policies] for seed in seeds])
    means = ", ".join(f"{mean:+.1e}" for mean in gaps.mean(0))
    yield Found(net, "healing", tuple(gaps[:, 2] - gaps[:, 1]), f"none, forward, backward: {means}")


def gradients(net: str, objective: Objective, seeds: Sequence[int]) -> Iterator[Found]:
    """Yield by how much float8_e5m2 gradients are worse than float8_e4m3fn ones."""
    narrow = preset("te.mxfp8", objective.model.layer_names)
    wide = narrow.with_layers(
        {name: replace(row, grad="float8_e5m2") for name, row in narrow.layers}
    )
    gaps = np.array([[gap_of(objective, p, seed) for p in (narrow, wide)] for seed in seeds])
    means = ", ".join(f"{mean:+.1e}" for mean in gaps.mean(0))
    yield Found(net, "gradients", tuple(gaps[:, 1] - gaps[:, 0]), f"e4m3, e5m2: {means}")


def moments(net: str, objective: Objective, seeds: Sequence[int]) -> Iterator[Found]:
    """Yield what second moments in bfloat16 add to the gap by the end, beyond at a tenth."""
    whole = preset(BFLOAT16, objective.model.layer_names)
    kept = replace(whole, second_moment="bfloat16", name="second moments in bfloat16")
    steps = objective.task.steps
    early = max(2, round(EARLY * steps))
    rows = []
    for seed in seeds:
        pair = [
            [objective.measure(policy, seed, steps=steps) for policy in (whole, kept)]
            for steps in (early, steps)
        ]
        rows.append([(b.tail_loss or np.inf) - (a.tail_loss or np.inf) for a, b in pair])
    found = np.array(rows)
    short, long = (Found(net, "moments", tuple(column)) for column in found.T)
    said = ", ".join(f"{x.mean:+.1e} +- {x.error:.0e}" for x in (short, long))
    task = objective.task
    signs = [sign_of(task, policy, early, seeds[0]) for policy in (kept, *healthy(whole))]
    signs.append(sign_of(replace(task, beta2=0.95), kept, early, seeds[0]))
    found_low = sign_of(task, kept, steps, seeds[0]).drift
    note = f"at a tenth, at the end: {said}; {signs[0].words}, at the end {found_low:.0%}"
    yield Found(
        net,
        "moments",
        tuple(found[:, 1] - np.maximum(found[:, 0], 0.0)),
        note,
        fine=short.verdict != "holds",
        behind=long.verdict == "holds",
        foretold=signs[0].low >= FORETOLD,
        alarms=sum(sign.low >= FORETOLD for sign in signs[1:]),
    )


def healthy(whole: Policy) -> list[Policy]:
    """Return controls: float32 moments, first ones in bfloat16, second ones rounded by chance."""
    chance = replace(whole.rounding, update=Rounding(mode="stochastic"))
    return [
        whole,
        replace(whole, optimizer_state="bfloat16", second_moment="float32"),
        replace(whole, second_moment="bfloat16", rounding=chance),
    ]


@dataclass(frozen=True)
class Sign:
    """What second moments say after some steps: see the top."""

    low: float
    drift: float

    @property
    def words(self) -> str:
        return f"low by {self.low:.0%}, drift {self.drift:.1%}"


def sign_of(task: Task, policy: Policy, steps: int, seed: int) -> Sign:
    """Return the early signs after these steps of a training."""
    whole = replace(policy, second_moment="float32", rounding=RoleRounding())
    stored, exact = (second_moments(task, row, steps, seed) for row in (policy, whole))
    layer = policy.layers[0][0]
    fmt = format_named(policy.state_of(layer, "v"))
    held = quantise(stored * np.float32(task.beta2), fmt) == stored
    held &= (stored > 0.0) & (policy.rounding.update.mode != "stochastic")
    low = float(np.mean(held)) * (1.0 - task.beta2 ** ((task.steps - steps) / 2))
    both = (stored > 0.0) & (exact > 0.0)
    drift = np.abs(np.log2(stored[both] / exact[both])) / 2
    return Sign(low, float(1.0 - 2.0 ** -np.median(drift)))


def second_moments(task: Task, policy: Policy, steps: int, seed: int) -> FloatArray:
    """Return all second moments of Adam after these steps."""
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    trainer = Trainer(model, task, policy, seed, records=False)
    trainer.load(initial_parameters(model, seed))
    for indices in batch_order(task, dataset, seed)[:steps]:
        trainer.step(*dataset.batch(indices))
    arrays = trainer.checkpoint("", []).arrays
    return np.concatenate([array.ravel() for name, array in arrays.items() if name.endswith(".v")])


def gap_of(objective: Objective, policy: Policy, seed: int) -> float:
    return gap(objective.measure(policy, seed), objective.baseline(seed))


def foretold(found: Sequence[Found]) -> str:
    """Return how many nets fall behind, and how many of them the early sign tells."""
    behind = [row for row in found if row.behind]
    counts = [
        f"{sum(row.foretold for row in rows)} of {len(rows)} that are {words}"
        for words, rows in (
            ("behind at the end", behind),
            ("behind at the end and fine at a tenth", [row for row in behind if row.fine]),
            ("not behind", [row for row in found if row.direction == "moments" and not row.behind]),
        )
    ]
    alarms = sum(row.alarms for row in found)
    return f"foretold nets: {', '.join(counts)}; alarms on controls: {alarms}"


DIRECTIONS = {"healing": healing, "gradients": gradients, "moments": moments}


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--nets", nargs="+", default=[*nets(10)], choices=[*nets(10)])
    known = [*DIRECTIONS]
    parser.add_argument("--directions", nargs="+", default=known, choices=known)
    options = parser.parse_args()
    found: list[Found] = []
    for name in options.nets:
        objective = Objective(nets(options.steps)[name], "B200-SXM", "torch.compile")
        for direction in options.directions:
            for row in DIRECTIONS[direction](name, objective, options.seeds):
                found.append(row)
                print(f"{name} {direction}: {row.verdict}", flush=True)
    head = ("net", "direction", "verdict", "as published by", "+-", "mean gaps")
    cells = [
        (x.net, x.direction, x.verdict, f"{x.mean:+.1e}", f"{x.error:.0e}", x.note) for x in found
    ]
    print(f"{options.steps} steps, seeds {options.seeds}; gaps in nats, modeled by the emulator")
    print("\n".join(aligned([head, *cells])))
    for direction in options.directions:
        verdicts = [row.verdict for row in found if row.direction == direction]
        counts = ", ".join(f"{verdicts.count(v)} {v}" for v in ("holds", "open", "reversed"))
        print(f"{direction}: {counts} of {len(verdicts)} nets")
    if "moments" in options.directions:
        print(foretold(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
