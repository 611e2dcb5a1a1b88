"""A net as trained beside the same net as sampled: what its log-probabilities are apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.objective.sampled import Mismatch, mismatches
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError

TASK = Task(
    model="gpt",
    activation="gelu",
    widths=(16, 32),
    data="sums",
    loss="token_cross_entropy",
    optimizer="adamw",
    learning_rate=0.004,
    batch_size=8,
    steps=24,
    tail_steps=4,
)
DATASET = TASK.load_dataset()
MODEL = TASK.build_model(DATASET)


def low(name: str) -> Policy:
    return preset(name, MODEL.layer_names)


def found(policy: Policy, sampler: Policy) -> list[Mismatch]:
    return list(mismatches(TASK, policy, sampler, 0))


def test_a_net_sampled_as_it_is_trained_is_not_apart() -> None:
    rows = found(low("bfloat16"), low("bfloat16"))
    assert [row.step for row in rows] == [6, 12, 24]
    assert {(row.mean, row.largest, row.bias) for row in rows} == {(0.0, 0.0, 0.0)}


def test_the_net_that_is_looked_at_is_the_one_that_was_trained() -> None:
    """Read in another order, weights are those of a net that knows nothing and still has a gap."""
    policy = low("bfloat16")
    losses = [row.loss for row in found(policy, low("float32"))]
    for step, loss in zip((6, 12, 24), losses, strict=True):
        run = train(TASK, policy, 0, dataset=DATASET, model=MODEL, until=step)
        assert loss == run.validation_loss
    assert losses[-1] < losses[0] - 0.1


def test_three_bits_of_mantissa_are_a_factor_of_eight() -> None:
    """arXiv 2510.26788: sampled in another way, float16 is nearer to itself than bfloat16 is."""
    apart = {
        name: np.mean([row.mean for row in found(low(name), low("float32"))])
        for name in ("bfloat16", "float16")
    }
    assert 0 < apart["float16"] < apart["bfloat16"] / 4


def test_a_float32_head_takes_away_part_of_it() -> None:
    whole = low("bfloat16")
    head = MODEL.layer_names[-1]
    kept = whole.with_layers({head: uniform_layer("float32")})
    rows = [found(policy, low("float32"))[-1].mean for policy in (whole, kept)]
    assert rows[1] < rows[0]


def test_what_is_no_likelihood_is_refused() -> None:
    task = Task(model="mlp", data="digits", loss="mean_squared_error", steps=4, tail_steps=2)
    with pytest.raises(InputError, match="expected a likelihood of labels"):
        next(mismatches(task, low("bfloat16"), low("bfloat16"), 0))
    with pytest.raises(InputError, match="layers: 'x'"):
        list(mismatches(replace(TASK, steps=4), preset("bfloat16", ("x",)), low("bfloat16"), 0))


def test_the_command_prints_it_along_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["mismatch", "preset:bfloat16", "preset:bfloat16", "--study"]
    assert main([*command, "studies/mlp-digits.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].split() == ["steps", "loss", "mean", "apart", "largest", "bias"]
    assert [line.split()[2:] for line in lines[-3:]] == [["0", "0", "0"]] * 3
