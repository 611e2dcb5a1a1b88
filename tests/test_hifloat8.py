"""HiFloat8 as a row: what it holds, its cast, and training on it."""

from __future__ import annotations

from dataclasses import replace

import en_dtypes
import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.formats import FORMATS, Rounding, format_named
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.grid import FloatArray
from policysearch.rounding.inclusion import contains, join
from policysearch.rounding.rounder import Fast, rounder
from policysearch.train.tasks import Task
from policysearch.train.training import train
from tests.rounding_oracle import FASTS, random_bits

HIFLOAT8 = FORMATS["hifloat8"]


def codes() -> FloatArray:
    values = np.arange(256, dtype=np.uint8).view(en_dtypes.hifloat8).astype(np.float32)
    return np.unique(values[np.isfinite(values)])


def inputs() -> dict[str, FloatArray]:
    patterns = np.arange(2**16, dtype=np.uint32)
    return {
        "bfloat16": (patterns << 16).view(np.float32),
        "float16": patterns.astype(np.uint16).view(np.float16).astype(np.float32),
        "float32": random_bits(10**6),
    }


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_every_value_is_that_of_the_oracle(name: str, fast: Fast) -> None:
    x = inputs()[name]
    found = np.empty_like(x)
    rounder(HIFLOAT8, Rounding(), fast=fast)(x, found)
    with np.errstate(all="ignore"):
        expected = x.astype(en_dtypes.hifloat8).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found[np.isfinite(found)])) == len(codes()) == 253


def test_the_row_knows_its_numbers() -> None:
    positive = codes()[codes() > 0]
    assert positive.max() == HIFLOAT8.max == 2.0**15
    assert positive.min() == HIFLOAT8.min_subnormal == 2.0**-22
    assert positive[positive > 1].min() == 1 + HIFLOAT8.epsilon
    assert (HIFLOAT8.bits, HIFLOAT8.max_exponent, HIFLOAT8.min_normal) == (8, 15, 2.0**-15)
    steps = np.diff(positive)
    for at, step in zip(positive[:-1], steps, strict=True):
        exponent = int(np.floor(np.log2(at)))
        assert step == 2.0 ** HIFLOAT8.quantum_exponent(exponent), at


@pytest.mark.parametrize("name", [name for name in FORMATS if format_named(name).bits < 16])
def test_what_it_contains_is_found_by_looking(name: str) -> None:
    narrow = FORMATS[name]
    drawn = random_bits(10**5)
    powers = np.ldexp(np.float32(1.0), np.arange(-30, 30)).astype(np.float32)
    x = np.concatenate([drawn[np.isfinite(drawn)], powers])
    held, again = np.empty_like(x), np.empty_like(x)
    rounder(narrow, Rounding(overflow="saturate"))(x, held)
    rounder(HIFLOAT8)(held, again)
    assert contains(HIFLOAT8, narrow) == bool((held == again).all())


def test_it_joins_to_what_holds_it() -> None:
    assert join([HIFLOAT8, FORMATS["float8_e4m3fn"]]).name == "float16"
    assert join([HIFLOAT8, FORMATS["bfloat16"]]).name == "bfloat16"
    assert join([FORMATS["float6_e2m3fn"], FORMATS["float6_e3m2fn"]]).name == "float8_e4m3fn"


def test_a_net_trains_on_it() -> None:
    task = Task(
        model="mlp", widths=(32,), data="digits", learning_rate=0.05, steps=60, tail_steps=9
    )
    dataset = load_dataset("digits")
    names = task.build_model(dataset).layer_names
    plain = preset("float8", names)
    layer = replace(uniform_layer("hifloat8"), wgrad="hifloat8")
    policy = replace(plain, layers=tuple((name, layer) for name in names))
    policy = replace(policy, scaling=preset("bfloat16", names).scaling)
    run, exact = (
        train(task, chosen, 0, dataset=dataset) for chosen in (policy, preset("float32", names))
    )
    assert not run.diverged and run.tail_loss < 0.8 * run.losses[0]
    assert 0 < abs(run.tail_loss - exact.tail_loss) < 0.2
