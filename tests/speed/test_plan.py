"""Planned buffers: those alive together lie apart, each as low as it can; steps share an arena."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.emulator import arena
from policysearch.emulator.plan import Buffer, Plan, assign_offsets
from policysearch.graph import FloatArray
from policysearch.layout import LINE, aligned
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.training import train
from tests.emulated_steps import NETS, graph_of

TASK = Task(model="mlp", widths=(256,), data="digits", batch_size=32, steps=40, tail_steps=5)


@pytest.mark.parametrize("net", NETS)
def test_buffers_alive_together_do_not_overlap(net: str) -> None:
    plan = Plan(graph_of(NETS[net], "float16", "adam"))
    for i, one in enumerate(plan.buffers):
        for other in plan.buffers[:i]:
            assert apart(one, other, one.offset)


def apart(one: Buffer, other: Buffer, offset: int) -> bool:
    """Whether `one` at `offset` and `other` where it is may both be there."""
    together = one.first <= other.last and other.first <= one.last
    below = offset + one.elements <= other.offset
    return below or other.offset + other.elements <= offset or not together


@pytest.mark.parametrize("seed", range(100))
def test_buffers_lie_at_the_lowest_free_offset_the_largest_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffers = []
    for _ in range(int(rng.integers(0, 60))):
        first = int(rng.integers(0, 50))
        last = first + int(rng.integers(0, 20))
        buffers.append(Buffer(int(rng.choice([1, LINE, LINE + 1, 100, 256])), first, last))
    elements = assign_offsets(buffers)
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: -b.elements):
        ends = (-(-(b.offset + b.elements) // LINE) * LINE for b in placed)
        free = (at for at in (0, *ends) if all(apart(buffer, b, at) for b in placed))
        assert buffer.offset == min(free)
        placed.append(buffer)
    assert elements == max((b.offset + b.elements for b in buffers), default=0)


def trained(
    phases: tuple[str, str], scale: LossScale, fast: Fast, monkeypatch: pytest.MonkeyPatch
) -> tuple[Run, list[int]]:
    """Return a run in two formats, and how many arenas there were whenever one was made."""
    arenas: list[weakref.ref[FloatArray]] = []
    there = []

    def counted(elements: int) -> FloatArray:
        there.append(sum(reference() is not None for reference in arenas))
        made = aligned(elements)
        assert made.base is not None
        arenas.append(weakref.ref(made.base))
        return made

    monkeypatch.setattr(arena, "aligned", counted)
    data = load_dataset("digits")
    layers = TASK.build_model(data).layer_names
    first, second = (tuple((layer, uniform_layer(name)) for layer in layers) for name in phases)
    policy = preset("float32", layers)
    policy = replace(policy, layers=first, loss_scale=scale, phases=(Phase(21, second),))
    return train(TASK, policy, 3, dataset=data, fast=fast), there


@pytest.mark.parametrize(
    ("phases", "scale", "made"),
    [
        (("float16", "float32"), LossScale(), 1),
        (
            ("float32", "float16"),
            LossScale("dynamic", init_scale=2.0**20, growth_interval=6),
            2,
        ),
    ],
    ids=["the first step needs most", "the second phase needs most, and skips steps"],
)
def test_a_training_has_one_arena_at_a_time(
    phases: tuple[str, str], scale: LossScale, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, there = trained(phases, scale, "numpy", monkeypatch)
    reference, none = trained(phases, scale, "off", monkeypatch)
    assert (there, none) == ([0] * made, [])
    assert bool(set(np.flatnonzero(run.skipped)) - {20}) == (scale.kind == "dynamic")
    np.testing.assert_array_equal(run.losses, reference.losses)
    np.testing.assert_array_equal(run.skipped, reference.skipped)
    for name, values in reference.params.items():
        np.testing.assert_array_equal(run.params[name], values)
