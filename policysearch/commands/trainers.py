"""`targets`, `inspect` and `import`: the files of trainers, listed, read and made policies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from policysearch.commands.registry import Command
from policysearch.commands.shared import add_task, model_of, source, viewed

if TYPE_CHECKING:
    from policysearch.export.reading import Reading


def _targets(options: argparse.Namespace) -> None:
    from policysearch.report.asked_and_run import targets_page

    print(targets_page())


def _file_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=source, metavar="FILE", help="a trainer's own file")
    command.add_argument("--target", default="torch", help="whose file it is (torch)")
    add_task(command)


def _reading(options: argparse.Namespace) -> Reading:
    from policysearch.export.targets import read_file, target_named
    from policysearch.files import read_text

    target_named(options.target)
    text = read_text(options.file, "a trainer's file")
    return read_file(options.target, text, model_of(options), str(options.file))


def _inspect(options: argparse.Namespace) -> None:
    from policysearch.report.asked_and_run import given_page

    reading = _reading(options)
    print(given_page(reading, options.target, viewed(options) if options.study else None))


def _import_arguments(command: argparse.ArgumentParser) -> None:
    _file_arguments(command)
    command.add_argument("--out", type=Path, metavar="FILE", help="a new policy file (the screen)")


def _import(options: argparse.Namespace) -> None:
    from policysearch.policy.policy_file import write_policy

    policy = _reading(options).policy
    if options.out is None:
        print(policy.to_json().rstrip("\n"))
        return
    write_policy(policy, options.out)
    print(f"wrote {options.out}")
    if options.study:
        print(f"next: policysearch try {options.out} --study {options.study}")


COMMANDS = (
    Command(320, "targets", "list the trainers that policies are written for", _targets),
    Command(
        330,
        "inspect",
        "print what a trainer's file gives each module",
        _inspect,
        _file_arguments,
        example="inspect results/lenet5-digits-torch.py --model lenet5",
    ),
    Command(
        340,
        "import",
        "make a policy of a trainer's file",
        _import,
        _import_arguments,
        example="import results/lenet5-digits-torch.py --model lenet5 --out policy.json",
    ),
)
