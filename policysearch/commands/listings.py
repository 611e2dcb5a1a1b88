"""`presets`, `formats` and `hardware`: what there is to choose from, as tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from policysearch.commands.registry import Command
from policysearch.report.text import aligned


def _presets(options: argparse.Namespace) -> None:
    """Print every preset and what it does."""
    from policysearch.policy.presets import PRESETS

    _print(("preset", "what it does"), [(row.name, row.summary) for row in PRESETS.values()])


def _formats(options: argparse.Namespace) -> None:
    """Print every number format with its range and precision."""
    from policysearch.formats import FORMATS

    rows = [
        (
            row.name,
            *(str(n) for n in (row.bits, row.exponent_bits, row.mantissa_bits)),
            *(f"{x:.6g}" for x in (row.max, row.min_normal, row.epsilon)),
            row.specials,
        )
        for row in FORMATS.values()
    ]
    titles = ("format", "bits", "exponent", "mantissa", "max", "min normal", "epsilon", "specials")
    _print(titles, rows)


def _hardware(options: argparse.Namespace) -> None:
    """Print every device with what its matrix unit multiplies, then every stack."""
    from policysearch.cost.devices import DEVICES
    from policysearch.cost.stacks import STACKS

    devices = [
        (
            row.name,
            row.arch,
            "/".join(f"{size:g}" for size in row.memory_gib),
            f"{row.bandwidth.value / 1e9:.0f}",
            ", ".join(row.formats),
        )
        for row in DEVICES.values()
    ]
    _print(("device", "architecture", "GiB", "GB/s", "formats of the matrix unit"), devices)
    stacks = [
        (row.name, row.mode, row.layout, f"{row.launch_seconds * 1e6:g}") for row in STACKS.values()
    ]
    print()
    _print(("stack", "mode", "layout", "launch microseconds"), stacks)


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(aligned([titles, *rows])))


COMMANDS = (
    Command(170, "presets", "list the presets", _presets),
    Command(180, "formats", "list the number formats", _formats),
    Command(190, "hardware", "list devices and software stacks", _hardware),
)
