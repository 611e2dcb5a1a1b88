"""The op `flash_attention`: its formula by numpy, its roundings beside torch's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policysearch.formats import format_named
from policysearch.graph import FloatArray
from policysearch.ops import attention_blocks
from policysearch.ops.attention_blocks import fast_exp
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.flash_attention import attributes, flash_attention, grad_k, grad_q, grad_v
from policysearch.rounding.rounder import quantise

SHAPES = {
    "one block": (20, 20, 16, 2, 1),
    "parts of blocks": (100, 120, 24, 6, 3),
    "more keys than a block": (300, 700, 16, 2, 1),
    "more queries than a block": (800, 1100, 64, 2, 2),
    "one query": (1, 530, 8, 4, 1),
}
"""Queries, keys, width, heads, and heads that share a key."""

VECTORS = {"AVX512": 16, "AVX2": 8}
"""Values in a vector of torch's fast exponential."""

MASKS = ("none", "added", "hiding")


def drawn(case: str, mask: str, name: str) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return grad, q, k and v on the grid of a format, and the mask, in which a row is hidden."""
    rows, keys, width, heads, shared = SHAPES[case]
    rng = np.random.default_rng(len(case))
    counts = (heads, heads, heads // shared, heads // shared)
    lengths = (rows, rows, keys, keys)
    made = [rng.standard_normal((n, m, width)) for n, m in zip(counts, lengths, strict=True)]
    arrays = [quantise(np.asarray(x, np.float32), format_named(name)) for x in made]
    if mask == "none":
        return arrays, []
    hidden = rng.random((rows, keys)) < 0.3
    hidden[rows // 2] = True
    added = np.where(hidden, -np.inf, rng.standard_normal((rows, keys))).astype(np.float32)
    values = quantise(added, format_named(name))
    return arrays, [values if mask == "added" else (~hidden).astype(np.float32)]


def left(case: str, share: float) -> list[FloatArray]:
    """Return the mask of shares that are left, as it is fed; none where none is dropped."""
    rows, keys, _, heads, _ = SHAPES[case]
    kept = np.random.default_rng(7).random((heads, rows, keys)) >= share
    return [(kept / (1.0 - share)).astype(np.float32)] if share else []


def emulated(case: str, mask: str, name: str, share: float = 0.0) -> list[FloatArray]:
    """Return the result and the gradients of q, k and v."""
    arrays, masks = drawn(case, mask, name)
    masks += left(case, share)
    attrs = attributes(0.3, hides=mask == "hiding", dropped=share)
    attrs |= {} if name == "float32" else {INNER_FORMAT: name}
    row = format_named(name)
    out = quantise(np.asarray(flash_attention.forward([*arrays[1:], *masks], attrs)), row)
    q, k = (op.forward([*arrays, out, *masks], attrs) for op in (grad_q, grad_k))
    v = grad_v.forward([*arrays, *masks], attrs)
    return [out, *(quantise(np.asarray(x), row) for x in (q, k, v))]


def by_formula(case: str, mask: str, name: str, share: float = 0.0) -> list[Any]:
    """Return the same in float64, without blocks."""
    arrays, masks = drawn(case, mask, name)
    grad, q, k, v = (x.astype(np.float64) for x in arrays)
    shared = len(q) // len(k)
    wide_k, wide_v = np.repeat(k, shared, 0), np.repeat(v, shared, 0)
    scores = 0.3 * q @ wide_k.swapaxes(1, 2)
    if mask == "added":
        scores = scores + masks[0]
    if mask == "hiding":
        scores = np.where(masks[0] > 0, scores, -np.inf)
    most = scores.max(axis=2, keepdims=True)
    shares = np.exp(scores - np.where(np.isneginf(most), 0.0, most))
    total = shares.sum(axis=2, keepdims=True)
    shares /= np.where(total == 0.0, 1.0, total)
    times = np.asarray(left(case, share)[0], np.float64) if share else 1.0
    of_shares = times * (grad @ wide_v.swapaxes(1, 2))
    slope = 0.3 * shares * (of_shares - (shares * of_shares).sum(axis=2, keepdims=True))
    shares = shares * times
    grads = slope.swapaxes(1, 2) @ q, shares.swapaxes(1, 2) @ grad
    by_key = (x.reshape(len(k), shared, *x.shape[1:]).sum(axis=1) for x in grads)
    return [shares @ wide_v, slope @ wide_k, *by_key]


def off(got: Any, expected: Any) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", SHAPES)
def test_in_float32_it_is_the_formula(case: str, mask: str, share: float) -> None:
    if case == "one query" and mask != "none":
        mask = "none"  # the only row would be the hidden one
    given = case, mask, "float32", share
    for got, expected in zip(emulated(*given), by_formula(*given), strict=True):
        assert off(got, expected) < 2e-6


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_with_dropout_it_rounds_no_more_than_without(name: str) -> None:
    """No kernel of a CPU drops shares; CUDA's rounds at the places where it does without."""
    case, mask = "parts of blocks", "added"
    plain, dropped = (
        [off(got, true) for got, true in zip(emulated(*g), by_formula(*g), strict=True)]
        for g in ((case, mask, name, share) for share in (0.0, 0.2))
    )
    for before, after in zip(plain, dropped, strict=True):
        assert 0.5 * before < after < 1.5 * before


def test_the_fast_exponential_is_off_by_a_ten_thousandth() -> None:
    x = -np.abs(np.random.default_rng(0).standard_normal((64, 37)) * 20).astype(np.float32)
    x[0, :4] = 0.0, -87.4, -1000.0, -np.inf
    fast, exact = fast_exp(x), np.exp(x.astype(np.float64))
    assert np.array_equal(fast[:, 32:], np.exp(x[:, 32:]))
    assert np.array_equal(fast[0, 1:4], np.zeros(3))
    normal = exact[:, :32] > 1e-37
    apart = np.abs(fast[:, :32][normal] / exact[:, :32][normal] - 1)
    assert 5e-5 < apart.max() < 1.2e-4


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", SHAPES)
def test_in_16_bits_it_rounds_as_the_kernel_of_torch(
    case: str, mask: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results differ where sums in another order round otherwise.

    Those of float16, whose grid is eight times as fine, do so more often. Another rounding of
    scores or shares moves results as far as torch's roundings do.
    """
    if case == "one query" and mask != "none":
        mask = "none"
    capability = pytest.importorskip("torch").backends.cpu.get_cpu_capability()
    if capability not in VECTORS:
        pytest.skip("torch's fast exponential takes other vectors on this CPU")
    monkeypatch.setattr(attention_blocks, "VECTOR", VECTORS[capability])
    got, expected = emulated(case, mask, name), in_torch(case, mask, name)
    exact = by_formula(case, mask, name)
    for mine, theirs, true in zip(got, expected, exact, strict=True):
        assert np.mean(mine != theirs) < (0.003 if name == "bfloat16" else 0.024)
        assert np.linalg.norm(mine - theirs) < 0.25 * np.linalg.norm(theirs - true)


def in_torch(case: str, mask: str, name: str) -> list[FloatArray]:
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    arrays, masks = drawn(case, mask, name)
    dtype = getattr(torch, name)
    grad, q, k, v = (torch.from_numpy(x)[None].to(dtype) for x in arrays)
    given = [torch.from_numpy(x).to(dtype if mask == "added" else torch.bool) for x in masks]
    inputs = [x.requires_grad_() for x in (q, k, v)]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        out = torch.nn.functional.scaled_dot_product_attention(
            *inputs,
            attn_mask=given[0] if given else None,
            scale=0.3,
            enable_gqa=len(k[0]) < len(q[0]),
        )
    out.backward(grad)
    return [x[0].detach().float().numpy() for x in (out, *(x.grad for x in inputs))]
