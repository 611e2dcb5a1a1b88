"""`presets`, `formats` and `hardware`: what there is to choose from, as tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from policysearch.commands.registry import Command
from policysearch.report.text import aligned

if TYPE_CHECKING:
    from policysearch.cost.devices import Device


def _presets(options: argparse.Namespace) -> None:
    """Print every preset, what its framework calls it, and what it does."""
    from policysearch.policy.presets import PRESETS, name_elsewhere

    rows = [(row.name, name_elsewhere(row), row.summary) for row in PRESETS.values()]
    _print(("preset", "called", "what it does"), rows)


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


def _one_device(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "device", nargs="?", metavar="DEVICE", help="list its numbers with marks and sources"
    )


def _hardware(options: argparse.Namespace) -> None:
    """Print every device with what its matrix unit multiplies, then every stack; or one device."""
    from policysearch.cost.devices import DEVICES
    from policysearch.cost.stacks import STACKS

    if options.device:
        _device(options.device)
        return
    devices = [
        (
            row.name,
            row.arch,
            "/".join(f"{size:g}" for size in row.memory_gib),
            f"{row.bandwidth.value / 1e9:.0f}",
            *_mark_counts(row),
            ", ".join(row.formats),
        )
        for row in DEVICES.values()
    ]
    titles = ("device", "architecture", "GiB", "GB/s", "numbers", "memory", "unsourced")
    _print((*titles, "formats of the matrix unit"), devices)
    print("\nnumbers: of the row; memory: those of a vendor that nobody has looked up again;")
    print("unsourced: assumed or derived. `policysearch hardware DEVICE` lists them with sources.")
    stacks = [
        (row.name, row.mode, row.layout, f"{row.launch_seconds * 1e6:g}") for row in STACKS.values()
    ]
    print()
    _print(("stack", "mode", "layout", "launch microseconds"), stacks)


def _mark_counts(device: Device) -> tuple[str, str, str]:
    """Return how many numbers a row has, from memory, and without a source."""
    marks = [row.mark for _, row in device.numbers]
    return str(len(marks)), str(marks.count("memory")), str(marks.count("unsourced"))


def _device(name: str) -> None:
    """Print every number of a device, its mark and its source."""
    from policysearch.cost.device_file import device_at, is_device_file
    from policysearch.cost.devices import SOURCES, device_labelled

    device = device_at(name) if is_device_file(name) else device_labelled(name)
    rows = [(key, f"{row.value:.6g}", row.mark or "-", row.source) for key, row in device.numbers]
    print(f"{device.name}: {device.arch}{f'; {device.notes}' if device.notes else ''}\n")
    _print(("number", "value", "mark", "source"), rows)
    words = {word for *_, source in rows for word in re.findall(r"[a-z0-9]+", source)}
    named = [f"{key}: {SOURCES[key]}" for key in SOURCES if key in words]
    print("\n".join(["", *named] if named else []))


def _print(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(aligned([titles, *rows])))


COMMANDS = (
    Command(440, "presets", "list the presets", _presets),
    Command(450, "formats", "list the number formats", _formats),
    Command(
        430,
        "hardware",
        "list devices and software stacks",
        _hardware,
        _one_device,
        example="hardware H100-SXM5",
    ),
)
