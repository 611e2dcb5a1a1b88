"""What was recorded of a training, by `record` or by others, and what is wrong in it.

msprobe 26.2 (`task` "statistics") writes a dump.json a step: the largest and smallest value of what
every module and call of torch takes and gives, in the order in which they ran. The statistics
logger of nvdlfw-inspect 0.2 writes a line a value, named LAYER_TENSOR_STATISTIC; Transformer
Engine's `LogTensorStats` and `LogFp8TensorStats` give it amax and the share of values lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policysearch.diagnose.log import (
    EXPECTED,
    LONGEST_MIB,
    NOTABLE,
    VANISHED,
    Finding,
    findings,
    log_steps,
)
from policysearch.files import read_text
from policysearch.formats import Format, format_named
from policysearch.values import InputError, json_value, shown

EXPECTED_DUMP = "a dump.json of msprobe's task statistics"

DIRECTIONS = {"forward": "fprop", "backward": "dgrad", "parameters_grad": "wgrad"}
"""msprobe's words for them."""

TENSORS = {"activation": "fprop", "output": "fprop", "weight": "fprop"} | {
    "gradient": "dgrad",
    "dgrad": "dgrad",
    "wgrad": "wgrad",
}
"""Transformer Engine's words for tensors, with the direction in which they come up."""

LARGEST = ("cur_amax", "max", "min")
LOST = {"underflows%": VANISHED, "overflows%": NOTABLE}
"""Statistics of it that tell what a format loses; and from which share on that is named."""

LINE = re.compile(
    rf"(?P<layer>\S+)_(?P<tensor>{'|'.join(TENSORS)})_(?P<statistic>\S+)"
    r"\s+iteration=(?P<step>\d+)\s+value=(?P<value>\S+)\s*$"
)


@dataclass(frozen=True)
class _Place:
    """Where a tensor comes up: its direction, layer, op and step."""

    direction: str
    layer: str
    op: str
    step: int

    def __str__(self) -> str:
        of = f" of {self.layer}" if self.layer and self.layer != self.op else ""
        return f"{self.op}{of} ({self.direction}, step {self.step})"

    def finding(self, kind: str, share: float | None, words: str) -> Finding:
        return Finding(kind, self.direction, self.layer, self.op, self.step, share, words)


@dataclass(frozen=True)
class Recording:
    """What a recorded training shows, and what may be said where that is nothing."""

    findings: tuple[Finding, ...]
    nothing: str


def read_recording(path: Path, format: str) -> Recording:
    """Return what a file shows: a log of `record`, msprobe's dump, Transformer Engine's lines.

    InputError where it is none of them.
    """
    if path.is_dir() or path.name.endswith("dump.json"):
        return _dump(path, format)
    text = read_text(path, EXPECTED, LONGEST_MIB)
    if _is_engine_log(text):
        return _engine_log(text, format)
    wrong = tuple(findings(log_steps(text, path), format))
    return Recording(wrong, f"nothing that {format} would lose, and no mistake of the loop")


def log_page(path: Path, format: str) -> str:
    """Return what a log shows, as text."""
    recording = read_recording(path, format)
    rows = [finding.words for finding in recording.findings] or [recording.nothing]
    return "\n".join([f"verdict: {rows[0]}", *rows[1:12]])


def _dump(path: Path, format: str) -> Recording:
    """Return what `format` cannot hold of msprobe's dump, the first in a step first.

    `path` is a dump.json, or a folder of them. InputError where it is something else. Where a
    tensor's values lie between its ends is not recorded, so that no share is known.
    """
    files = sorted(path.rglob("dump.json"), key=_step_of) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path}: no dump.json; expected the dump_path of msprobe")
    first, fmt, tensors = dict[tuple[str, str], Finding](), format_named(format), 0
    for file in files:
        for place, largest in _dump_readings(file):
            tensors += 1
            # a module stands behind the calls in it: one row a layer and direction, the first
            for finding in _beyond(place, largest, fmt):
                first.setdefault((finding.direction, finding.layer or finding.op), finding)
    nothing = (
        f"nothing beyond {format}; a dump shows neither what is too small nor the loop"
        if tensors
        else "cannot tell: no Max and Min of a tensor; set summary_mode to statistics"
    )
    return Recording(tuple(first.values()), nothing)


def _step_of(file: Path) -> int:
    steps = [part[4:] for part in file.parts if re.fullmatch(r"step\d+", part)]
    return int(steps[-1]) if steps else 0


def _dump_readings(file: Path) -> Iterator[tuple[_Place, float]]:
    data = _json(file).get("data")
    if not isinstance(data, dict):
        raise InputError(f"{file}: {shown(data)} as data; expected {EXPECTED_DUMP}")
    beside = file.with_name("construct.json")
    parents = _json(beside) if beside.is_file() else {}
    for name, row in data.items():
        place = _place(name, parents, _step_of(file))
        if place is None or parents.get(name) == "optimizer":
            continue
        sizes = [size for tensor in _tensors(row) if (size := _largest(tensor)) is not None]
        if sizes:
            largest = math.nan if any(map(math.isnan, sizes)) else max(sizes)
            yield place, largest


def _json(file: Path) -> dict[str, Any]:
    plain = json_value(read_text(file, EXPECTED_DUMP, LONGEST_MIB), str(file), EXPECTED_DUMP)
    if not isinstance(plain, dict):
        raise InputError(f"{file}: {shown(plain)}; expected {EXPECTED_DUMP}")
    return plain


def _place(name: str, parents: dict[str, Any], step: int) -> _Place | None:
    """Return where "Module.fc1.Linear.forward.0" or "Functional.linear.0.forward" is."""
    parts = name.split(".")
    direction = next((DIRECTIONS[part] for part in parts[-2:] if part in DIRECTIONS), None)
    if direction is None or len(parts) < 4:
        return None
    if parts[0] in ("Module", "Cell"):
        return _Place(direction, ".".join(parts[1:-3]), parts[-3], step)
    parent = parents.get(name)
    inside = parent.split(".") if isinstance(parent, str) else []
    return _Place(direction, ".".join(inside[1:-3]), ".".join(parts[1:-2]), step)


def _tensors(row: Any) -> Iterator[dict[str, Any]]:
    """Yield the tensors that a call gives; gradients of parameters stand by their names."""
    stack = [row.get("output", row) if isinstance(row, dict) else []]
    while stack:
        part = stack.pop()
        if isinstance(part, dict) and "Max" in part:
            yield part
        elif isinstance(part, dict):
            stack += [value for key, value in part.items() if not key.startswith("input")]
        elif isinstance(part, list):
            stack += part


def _largest(tensor: dict[str, Any]) -> float | None:
    """Return the largest magnitude of a tensor, NaN where it has NaN; None where it has none."""
    if "float" not in str(tensor.get("dtype")).lower():
        return None
    try:
        sizes = [abs(float(tensor[end])) for end in ("Max", "Min")]
    except (KeyError, TypeError, ValueError):
        return None
    return math.nan if any(map(math.isnan, sizes)) else max(sizes)


def _beyond(place: _Place, largest: float, fmt: Format) -> Iterator[Finding]:
    """Yield what a tensor loses whose largest magnitude is `largest`: NaN has no number left."""
    bottom = fmt.min_normal * 2.0**-fmt.mantissa_bits
    if not math.isfinite(largest):
        kind = "not a number" if math.isnan(largest) else "overflow"
        yield place.finding(kind, None, f"{place} gives {largest:g}: {kind}")
    elif largest > fmt.max:
        words = f"{place} gives up to {largest:.3g}: overflow in {fmt.name}, which ends at"
        yield place.finding("overflow", None, f"{words} {fmt.max:.6g}")
    elif 0.0 < largest < bottom / 2.0:
        words = f"{place} gives no more than {largest:.2g}: all of it is zero in {fmt.name}"
        yield place.finding("underflow", 1.0, words)


def _is_engine_log(text: str) -> bool:
    """Return whether a text has a line of Transformer Engine's statistics near its start."""
    return any(LINE.search(line) for line in text[:100_000].splitlines()[:200])


def _engine_log(text: str, format: str) -> Recording:
    """Return what statistics of Transformer Engine show, overflows first, then by step.

    The share that a recipe loses is taken where it was logged (`underflows%`, `overflows%`), and
    the largest magnitude is held against `format`, unscaled. Values are written with four
    decimals, so that a small magnitude says nothing and is passed over.
    """
    fmt, first = format_named(format), dict[tuple[str, str, str, str], Finding]()
    statistics = set()
    for line in text.splitlines():
        match = LINE.search(line)
        if match is None:
            continue
        statistics.add(_kind_of(match["statistic"]))
        for finding in _engine_line(match, fmt):
            key = finding.kind, finding.direction, finding.layer, finding.op
            first.setdefault(key, finding)
    telling = sorted(statistics & {*LARGEST, *LOST})
    nothing = (
        f"nothing lost in {' and '.join(telling)} as logged; all else is not in this log"
        if telling
        else f"cannot tell: none of {', '.join((*LARGEST, *LOST))} was logged"
    )
    rows = sorted(first.values(), key=lambda f: (f.kind == "underflow", f.step))
    return Recording(tuple(rows), nothing)


def _kind_of(statistic: str) -> str:
    """Return "underflows%" of "fp8_current_scaling_underflows%_columnwise"."""
    return next((kind for kind in (*LARGEST, *LOST) if kind in statistic), statistic)


def _engine_line(match: re.Match[str], fmt: Format) -> Iterator[Finding]:
    tensor, statistic = match["tensor"], match["statistic"]
    place = _Place(TENSORS[tensor], match["layer"], tensor, int(match["step"]))
    try:
        value = float(match["value"])
    except ValueError:
        return
    if statistic in LARGEST and not abs(value) <= fmt.max:
        yield from _beyond(place, abs(value), fmt)
    kind = _kind_of(statistic)
    least = LOST.get(kind, math.inf)
    if value / 100.0 >= least:
        cast = statistic.replace(kind, "").strip("_").replace("__", ", ") or "FP8"
        lost = kind.removesuffix("s%")
        words = f"{value:.3g} % of {place}: {lost} in {cast}"
        yield place.finding(lost, value / 100.0, words)
