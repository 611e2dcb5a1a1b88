"""Works of layers as a device runs them: a format that it lacks is run in a wider one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from policysearch.cost.devices import Device
from policysearch.cost.roofline import Work
from policysearch.formats import format_named


def as_run(works: Iterable[Work], device: Device) -> list[Work]:
    """Return the works with products in formats that the device has, and the passes before them.

    A pass reads the narrow operands of a product and writes them wide, as `Device.runs_as` says and
    as step graphs are priced; the product reads the wide ones. Its result stays as narrow.
    """
    return [run for work in works for run in _as_run(work, device)]


def _as_run(work: Work, device: Device) -> list[Work]:
    e, runs = work.product, device.runs_as(work.format)
    if e is None or runs == work.format:
        return [work]
    narrow, wide = (format_named(name).bits / 8 for name in (work.format, runs))
    operands = max(0.0, work.bytes / narrow - e.batch * e.rows * e.columns)
    widened = Work(operands * (narrow + wide), 2 * operands, count=work.count, launches=2)
    bytes = work.bytes + operands * (wide - narrow)
    return [widened, replace(work, bytes=bytes, format=runs)]
