"""Devices on recorded networks: a better one is never slower, and speedups count samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import cycle, product

import pytest

from policysearch.cost.devices import DEVICES, Device, Sourced
from policysearch.cost.roofline import FITTED, kernel_seconds, load_of
from policysearch.cost.stacks import STACKS, Stack
from policysearch.cost.time import step_time
from policysearch.nn.models import lenet5, mlp
from policysearch.objective.published.graphs import Run, recorded_works
from policysearch.objective.published.networks import NETWORKS, network_named
from policysearch.objective.published.rows import read_rows, setting_of
from policysearch.objective.published.stacks import Precision
from policysearch.objective.published.steps import speedups, steps_of
from policysearch.values import InputError
from tests.cost_steps import step

EAGER, COMPILED = STACKS["torch.eager"], STACKS["torch.compile"]


def test_names_are_found_as_they_are_spelled_elsewhere() -> None:
    assert network_named("SE-ResNeXt101-32x4d") is NETWORKS["se_resnext101_32x4d"]
    assert network_named("nvidia/ResNet50 v1.5") is NETWORKS["resnet50"]
    with pytest.raises(InputError, match="unknown network 'resnet49'; did you mean"):
        network_named("resnet49")
    with pytest.raises(InputError, match="expected a recorded one, or a net of yours"):
        network_named("Perceiver")


def better(device: Device, by: dict[str, float]) -> Device:
    """Return the device with some of its numbers larger; what it issues grows with its peaks."""

    def grown(name: str, number: Sourced) -> Sourced:
        return dataclasses.replace(number, value=number.value * by.get(name, 1.0))

    issued = {"issues_per_second": "peak"}
    return dataclasses.replace(
        device,
        peaks=tuple((name, grown("peak", number)) for name, number in device.peaks),
        achieved=tuple((name, grown("peak", number)) for name, number in device.achieved),
        bandwidth=grown("bandwidth", device.bandwidth),
        multiprocessors=grown("multiprocessors", device.multiprocessors),
        other=tuple((name, grown(issued.get(name, name), n)) for name, n in device.other),
    )


def numbers(device: Device) -> dict[str, float]:
    """Return what a device is better in: rates in all, and of each multiprocessor."""
    count = device.multiprocessors.value
    rates = {f"peak {name}": number.value for name, number in device.peaks}
    rates |= {f"achieved {f}": device.achieved_peak(f) for f in device.formats}
    each = {f"{name} each": value / count for name, value in rates.items()}
    more = {"bandwidth": device.bandwidth.value, "issue": device.issue_rate, "count": count}
    return rates | each | more


PAIRS = [
    (worse.name, best.name)
    for worse in DEVICES.values()
    for best in DEVICES.values()
    if worse is not best
    and dict(worse.alignment).items() >= dict(best.alignment).items()
    and numbers(worse).keys() <= numbers(best).keys()
    and all(numbers(best)[key] >= value for key, value in numbers(worse).items())
]
"""Devices of the package of which the second is better in every number that the first has."""

NEXT = [
    (worse, best)
    for worse, best in PAIRS
    if not any({(worse, name), (name, best)} <= {*PAIRS} for name in DEVICES)
]
"""Those with none between them: what holds of neighbours holds of all."""

KINDS = {
    (device.formats, device.alignment, tuple(name for name, _ in device.other)): device
    for device in DEVICES.values()
}
"""A device of every set of formats and of other numbers."""

SETTINGS = [*product((("resnet18", "ncf"), ("bert-base", "mnasnet0_5")), (EAGER, COMPILED))]
"""Networks and stacks that devices are priced with in turn."""

GROWN = (
    {"bandwidth": 1.3},
    {"peak": 1.3},
    {"peak": 1.3, "bandwidth": 1.2, "multiprocessors": 1.25},
)


def priced(
    device: Device, stack: Stack, nets: Sequence[str], formats: Sequence[str] = ()
) -> list[float]:
    """Return kernel seconds of two networks in two formats each, and of steps of small graphs."""
    found, every = [], ("float32", "float16", "bfloat16", "tfloat32")
    offered = [format for format in every if format in (formats or device.formats)]
    for name, other in zip(nets, (offered[1], offered[-1]), strict=True):
        for format in (offered[0], other):
            precision = Precision(format, format, "float32" if format[0] == "t" else format)
            run = Run(NETWORKS[name], 0, 8, precision, device, stack)
            load = load_of(recorded_works(run), device, stack)
            each = kernel_seconds(load, FITTED)
            found.append(float(((each.kernel + each.shift) * load.count).sum()))
    for model in (lenet5(), mlp((256, 256, 10), "relu")):
        for policy in ("float32", *(["float16"] if "float16" in device.formats else [])):
            found.append(step_time(step(model, policy, 64), device, stack).step_seconds)
    return found


@pytest.mark.parametrize(
    ("device", "setting", "by"),
    [
        (device, *case)
        for device, case in zip(KINDS.values(), cycle(product(SETTINGS, GROWN)), strict=False)
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_device_with_larger_numbers_is_never_slower(
    device: Device, setting: tuple[Sequence[str], Stack], by: dict[str, float]
) -> None:
    nets, stack = setting
    before, after = (priced(each, stack, nets) for each in (device, better(device, by)))
    assert len(after) == len(before)
    assert all(new <= old * (1 + 1e-12) for new, old in zip(after, before, strict=True)), by


@pytest.mark.parametrize(
    ("worse", "best", "setting"),
    [(*pair, setting) for pair, setting in zip(NEXT, cycle(SETTINGS), strict=False)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_device_better_in_every_number_is_never_slower(
    worse: str, best: str, setting: tuple[Sequence[str], Stack]
) -> None:
    nets, stack = setting
    shared = [name for name in DEVICES[worse].formats if name in DEVICES[best].formats]
    assert "float32" in shared
    before, after = (priced(DEVICES[name], stack, nets, shared) for name in (worse, best))
    assert len(after) == len(before) > 4
    assert all(new <= old * (1 + 1e-12) for new, old in zip(after, before, strict=True))


def test_speedups_count_samples_not_steps() -> None:
    row = next(row for row in read_rows() if row.model == "ncf")
    doubled = dataclasses.replace(row, batches=(row.batches[0], 2 * row.batches[1]))
    bare = dataclasses.replace(FITTED, step_seconds=0.0)
    one, two = speedups(steps_of([setting_of(row), setting_of(doubled)]), bare)
    assert two == pytest.approx(one, rel=0.05)
