"""What there is to choose from, as tables of text: presets, formats, devices and stacks."""

from __future__ import annotations

from policysearch.cost.devices import DEVICES
from policysearch.cost.stacks import STACKS
from policysearch.formats import FORMATS
from policysearch.policy.presets import PRESETS
from policysearch.report.table import aligned


def presets() -> str:
    """Return every preset and what it does."""
    pairs = [(row.name, row.summary) for row in PRESETS.values()]
    return "\n".join(aligned([("preset", "what it does"), *pairs]))


def formats() -> str:
    """Return every number format with its range and precision."""
    head = ("format", "bits", "exponent", "mantissa", "max", "min normal", "epsilon", "specials")
    rows = [
        (
            row.name,
            *(str(n) for n in (row.bits, row.exponent_bits, row.mantissa_bits)),
            *(f"{x:.6g}" for x in (row.max, row.min_normal, row.epsilon)),
            row.specials,
        )
        for row in FORMATS.values()
    ]
    return "\n".join(aligned([head, *rows]))


def hardware() -> str:
    """Return every device with what its matrix unit multiplies, then every stack."""
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
    head = ("device", "architecture", "GiB", "GB/s", "formats of the matrix unit")
    stacks = [
        (row.name, row.mode, row.layout, f"{row.launch_seconds * 1e6:g}") for row in STACKS.values()
    ]
    stack_head = ("stack", "mode", "layout", "launch microseconds")
    return "\n".join([*aligned([head, *devices]), "", *aligned([stack_head, *stacks])])
