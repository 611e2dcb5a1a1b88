"""Batch norm, token losses and stacked products against torch: values and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import TARGETS, data
from tests.torch_cases import Case, assert_as_torch, normal, one

pytestmark = pytest.mark.torch

DRAWS = 4


@pytest.mark.parametrize("rank", [2, 3, 4, 5])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(rank: int, training: bool) -> None:
    rng = np.random.default_rng(rank)
    x = (3.0 * normal(rng, *(4, 3, 5, 6, 2)[:rank]) + 1.5).astype(np.float32)
    mean, weight, bias = (normal(rng, 3) for _ in range(3))
    variance = rng.uniform(0.5, 2.0, 3).astype(np.float32)

    def trace(b: Builder, ids: Sequence[int]) -> int:
        x, mean, variance, weight, bias = ids
        if training:
            mean, variance = b.emit(OPS["batch_mean"], x), b.emit(OPS["batch_variance"], x)
        attrs = {"epsilon": 1e-3, "training": training}
        return b.emit(OPS["batch_norm"], x, mean, variance, weight, bias, attrs=attrs)

    def expected(t: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> Any:
        return t.nn.functional.batch_norm(x, mean, variance, weight, bias, training, 0.1, 1e-3)

    assert_as_torch(Case((x, mean, variance, weight, bias), trace, expected, fixed=(1, 2)), rank)


def test_running_statistics_move_as_torchs() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    norm = torch.nn.BatchNorm2d(3, momentum=0.2)
    b = Builder()
    x = b.emit(data, attrs={"shape": (4, 3, 5, 2)}, role="input", name="x")
    old = [b.emit(data, attrs={"shape": (3,)}, role="input", name=name) for name in ("m", "v")]
    mean, variance = b.emit(OPS["batch_mean"], x), b.emit(OPS["batch_variance"], x)
    new = b.emit(OPS["moving_average"], old[0], mean, attrs={"momentum": 0.2})
    attrs = {"momentum": 0.2, "factor": 40 / 39}
    spread = b.emit(OPS["moving_average"], old[1], variance, attrs=attrs)
    step = compile_graph(b.graph({"m": new, "v": spread}))
    step.arrays["v"][...] = 1.0
    for _ in range(5):
        step.arrays["x"][...] = 2.0 * normal(rng, 4, 3, 5, 2) + 0.5
        norm(torch.from_numpy(step.arrays["x"].copy()))
        step.forward_backward()
        for name in ("m", "v"):
            step.arrays[name][...] = step.value(name)
    np.testing.assert_allclose(step.arrays["m"], norm.running_mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(step.arrays["v"], norm.running_var.numpy(), rtol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_token_cross_entropy(smoothing: float, ignored: int) -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        rows, classes = (int(n) for n in rng.integers(5, 40, 2))
        targets = rng.integers(0, classes, rows).astype(np.float32)
        targets[rng.random(rows) < 0.3] = ignored
        assert (targets == ignored).any() and (targets != ignored).any()

        def expected(t: Any, logits: Any, targets: Any) -> Any:
            return t.nn.functional.cross_entropy(
                logits, targets.long(), ignore_index=ignored, label_smoothing=smoothing
            )

        attrs = {"ignore_index": ignored, "label_smoothing": smoothing}
        logits = 5.0 * normal(rng, rows, classes)
        trace = one("token_cross_entropy", attrs)
        assert_as_torch(Case((logits, targets), trace, expected, fixed=(1,)), seed)


def test_token_cross_entropy_of_no_row_is_nan() -> None:
    b = Builder()
    logits = b.emit(data, attrs={"shape": (3, 4)}, role="input", name="logits")
    targets = b.emit(data, attrs={"shape": (3,)}, role="input", name=TARGETS)
    step = compile_graph(b.graph({"y": b.emit(OPS["token_cross_entropy"], logits, targets)}))
    step.arrays[TARGETS][...] = -100
    step.forward_backward()
    assert np.isnan(step.value("y"))


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3)])
def test_products_of_stacks(lead: tuple[int, ...], transpose_a: bool, transpose_b: bool) -> None:
    rng = np.random.default_rng(len(lead))
    a, b = (4, 5), (5, 6)
    left = normal(rng, *lead, *(a[::-1] if transpose_a else a))
    right = normal(rng, *lead, *(b[::-1] if transpose_b else b))

    def expected(t: Any, a: Any, b: Any) -> Any:
        return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)

    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    assert_as_torch(Case((left, right), one("matmul", attrs), expected), 0)
