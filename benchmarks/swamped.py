"""Prints, per study, what a short run says of vanishing updates, and what became of the long one.

    python -m benchmarks.swamped studies/mlp-digits.toml studies/lenet5-digits.toml

The policies are the study's ladder, then float32 arithmetic with parameters stored without masters
in formats of float32's range and fewer mantissa bits. Share: of the updates of the study's own
run that are swamped, projected to the smallest learning rate. Gap: of the run over `--steps` at
the same recipe, beside float32's own loss there. Seed 0. `--constant` trains at the recipe's rate
without its schedule. Exits with 1 where a policy with masters
is marked, or one whose gap is above twice what a confirmed policy may have is not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.space.model_space import make_space
from policysearch.study.journal.trials import SHARE_OF_LOSS, SWAMPED
from policysearch.study.specification import StudySpec, load_spec
from policysearch.train.schedule import Schedule
from policysearch.train.training import train
from policysearch.values import InputError

MANTISSA_BITS = (7, 9, 10, 11, 12, 13, 14)


def policies(spec: StudySpec, model: Model) -> Iterator[Policy]:
    """Yield the ladder of the study, then float32 with narrower stored parameters."""
    for policy, _ in (
        make_space(spec.space, model, spec.rules, steps=spec.task.steps)
        .ladder(spec.study.baseline)
        .values()
    ):
        yield policy
    plain = preset("float32", model.layer_names)
    for bits in MANTISSA_BITS:
        layers = tuple((name, replace(row, param=f"e8m{bits}")) for name, row in plain.layers)
        yield replace(plain, name=f"stored in e8m{bits}", layers=layers, master_weights=False)


def report(spec: StudySpec, steps: int) -> bool:
    """Print a line per policy; return whether the marks are right."""
    data = spec.task.load_dataset()
    model = spec.task.build_model(data)
    long = spec.task.with_steps(steps)
    plain = preset("float32", model.layer_names)
    base = train(long, plain, 0, dataset=data, model=model).tail_loss
    print(f"{spec.study.name}: float32's loss at {steps} steps {base:.4g} nats")
    good = True
    for policy in policies(spec, model):
        short = train(spec.task, policy, 0, dataset=data, model=model).swamped.projected
        gap = train(long, policy, 0, dataset=data, model=model).tail_loss - base
        marked = short >= SWAMPED
        print(
            f"  {policy.name:<24} {short:8.4%} swamped at {spec.task.steps} steps, then gap "
            f"{gap:+.2e} = {gap / base:+7.1%} of float32's loss{'  MARKED' * marked}",
            flush=True,
        )
        late = gap > 2 * SHARE_OF_LOSS * base and not policy.master_weights
        good &= not (marked and policy.master_weights) and marked >= late
    return good


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY.toml")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--constant", action="store_true", help="train without the schedule")
    options = parser.parse_args()
    try:
        specs = [load_spec(path) for path in options.studies]
        if options.constant:
            specs = [replace(spec, task=replace(spec.task, schedule=Schedule())) for spec in specs]
        good = [report(spec, options.steps) for spec in specs]
    except InputError as error:
        print(f"swamped: {error}", file=sys.stderr)
        return 2
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
