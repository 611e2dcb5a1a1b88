"""`mismatch`: a net as it is trained beside the same net as it samples."""

from __future__ import annotations

import argparse

from policysearch.commands.registry import Command
from policysearch.commands.shared import (
    add_policy,
    add_study_option,
    check_policy,
    policy_in,
    study_and_policy,
)


def _arguments(command: argparse.ArgumentParser) -> None:
    add_policy(command)
    known = "the policy it samples under: a policy file or preset:NAME"
    command.add_argument("sampler", metavar="SAMPLER", help=known)
    add_study_option(command)
    command.add_argument("--seed", type=int, default=0)


def _mismatch(options: argparse.Namespace) -> None:
    from policysearch.objective.sampled import mismatches
    from policysearch.report.text import aligned

    check_policy(options.sampler)
    spec, policy = study_and_policy(options)
    sampler = policy_in(spec, options.sampler)
    print(f"trained as {policy.name}, sampled as {sampler.name}; log-probabilities of validation")
    print("labels under the same weights, sampled minus trained, in nats")
    rows = [("steps", "loss", "mean apart", "largest", "bias")]
    for row in mismatches(spec.task, policy, sampler, options.seed):
        numbers = (f"{x:.3g}" for x in (row.loss, row.mean, row.largest, row.bias))
        rows.append((str(row.step), *numbers))  # type: ignore[arg-type]
    print("\n".join(aligned(rows)))


COMMANDS = (
    Command(
        225,
        "mismatch",
        "compare log-probabilities of a net as trained and as sampled",
        _mismatch,
        _arguments,
        "mismatch preset:bfloat16 preset:float16 --study studies/gpt-sums.toml",
    ),
)
