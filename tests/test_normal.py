"""Policies that train alike are one: against real trainings, bit by bit, on both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.space.encoding import Encoding
from policysearch.space.equivalence import canonical, scale_acts
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train.tasks import Task
from tests.studies import replaced_training, write_study

STEPS = 12
TASK = Task(
    model="mlp",
    activation="tanh",
    widths=(16, 16),
    data="digits",
    batch_size=32,
    learning_rate=0.1,
    steps=STEPS,
    tail_steps=4,
)
SECTION = SpaceSection(
    formats=("float32", "bfloat16", "float16", "float8_e4m3fn"),
    ops=("tanh",),
    op_places=("low", "fp32", "promote"),
    master_weights=(True, False),
    loss_scales=("none", "fixed", "dynamic", "schedule"),
    log2_scale=(-12, 12),
    growth_intervals=(4, 100, 1000),
    scale_schedules=("0:3 0.5:9",),
    scalings=("current", "none"),
)
FIXED = LossScale("fixed", 2.0**9)
GROWING = LossScale("dynamic", 2.0**9, growth_interval=3)
MOVING = LossScale("schedule", schedule=((0, 8.0), (6, 512.0)))


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.compile")


@pytest.fixture(scope="module")
def space(objective: Objective) -> Space:
    return make_space(SECTION, objective.model, steps=STEPS)


def raw(space: Space, params: dict[str, Any]) -> Policy:
    """Return the policy of a uniform format before it is brought to its normal form."""
    whole = {f"format.{g.name}": params["format"] for g in space.groups}
    policy = space.policy(whole | {k: v for k, v in params.items() if k != "format"})
    return replace(policy, loss_scale=space.loss_scale(params))


def losses(objective: Objective, policy: Policy) -> tuple[object, ...]:
    run = objective.measure(policy, 0)
    assert run.tail_loss is not None
    return run.tail_loss, run.curve, run.validation_accuracy


@pytest.mark.parametrize("scale", [FIXED, GROWING, MOVING, LossScale("dynamic", 1.0)])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_a_scale_by_powers_of_two_changes_no_bit_where_none_is_lost(
    space: Space, objective: Objective, name: str, scale: LossScale
) -> None:
    for master in (True, False):
        given = {"format": name, "master_weights": master, "scaling": "current"}
        policy = replace(raw(space, given), loss_scale=scale)
        plain = canonical(policy, STEPS)
        assert plain.loss_scale == LossScale() and not scale_acts(policy)
        assert losses(objective, policy) == losses(objective, plain)


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        ({"format": "float16"}, LossScale("fixed", 2.0**-12)),
        ({"format": "float8_e4m3fn", "scaling": "none"}, FIXED),
        ({"format": "bfloat16"}, LossScale("fixed", 3.0)),
    ],
)
def test_a_scale_that_changes_bits_is_kept(
    space: Space, objective: Objective, given: dict[str, Any], scale: LossScale
) -> None:
    policy = replace(raw(space, given), loss_scale=scale)
    assert scale_acts(policy) and canonical(policy, STEPS).loss_scale == scale
    without = replace(policy, loss_scale=LossScale())
    assert losses(objective, policy) != losses(objective, without)


def test_float32_throughout_is_float32(space: Space, objective: Objective) -> None:
    """Whatever its op lists and its way to add a bias say, masters or not."""
    base = raw(space, {"format": "float16", "op.tanh": "promote"})
    whole = raw(space, {"format": "float32"}).layers
    for bias in ("fused", "rounded", "fp32"):
        policy = replace(base, layers=whole, bias=bias, master_weights=False)
        assert canonical(policy, STEPS) == objective.float32
        assert losses(objective, policy) == losses(objective, objective.float32)


def test_an_op_of_float32_layers_decides_nothing(space: Space, objective: Objective) -> None:
    """tanh follows the first two layers; the last one has none."""
    idle = {"format.fc1": "float32", "format.fc2": "float32", "format.fc3": "float16"}
    acting = idle | {"format.fc2": "bfloat16"}
    places = ("low", "fp32", "promote")
    found = [[space.policy(given | {"op.tanh": p}) for p in places] for given in (idle, acting)]
    assert [len({policy.digest for policy in policies}) for policies in found] == [1, 3]
    lists = [
        replace(
            found[0][0],
            fp32_ops=p.fp32_ops,
            low_precision_ops=p.low_precision_ops,
            promote_ops=p.promote_ops,
        )
        for p in found[1]
    ]
    assert len({policy.digest for policy in lists}) == 3
    assert len({losses(objective, policy) for policy in lists}) == 1
    assert losses(objective, found[1][0]) != losses(objective, found[1][1])


def test_intervals_longer_than_the_run_are_one(space: Space, objective: Objective) -> None:
    given = {"format": "float16", "loss_scale": "dynamic", "log2_scale": 3}
    each = [raw(space, given | {"growth_interval": i}) for i in (4, 100, 1000)]
    assert len({canonical(policy, STEPS).digest for policy in each}) == 2
    long, longest = (losses(objective, policy) for policy in each[1:])
    assert long == longest
    runs = [objective.measure(policy, 0).scales for policy in each[:2]]
    assert len(runs[0]) > len(runs[1]) == 1


def test_rows_are_one_where_policies_are(space: Space) -> None:
    """Drawn at random, and all variants of one."""
    effective = Encoding(space)
    choices, rng = space.choices(), np.random.default_rng(3)
    rows: dict[str, set[tuple[int, ...]]] = {}
    for _ in range(400):
        params = {n: values[rng.integers(len(values))] for n, values in choices.items()}
        low = [n for n in choices if n.startswith("format.")]
        params |= {n: str(rng.choice(["float32", "bfloat16"])) for n in low}
        policy = space.policy(params)
        rows.setdefault(policy.digest, set()).add(effective.row(params))
    assert all(len(found) == 1 for found in rows.values())
    assert len({row for found in rows.values() for row in found}) == len(rows) < 200


def test_a_loss_scale_on_bfloat16_costs_no_training(tmp_path: Path) -> None:
    """The search with it asks for the same policies in the same order."""
    asked = []
    for name, given in (("plain", '["none"]'), ("scaled", '["none", "fixed", "dynamic"]')):
        changes = (
            ('sampler = "random"', 'sampler = "gain"'),
            ("trials = 6", "trials = 14"),
            ('"bfloat16", "float8_e4m3fn"]', '"bfloat16"]'),
            ('"mindspore.O0", "apex.O3"', '"uniform"'),
            ('loss_scales = ["none", "fixed", "dynamic"]', f"loss_scales = {given}"),
        )
        spec = load_spec(write_study(tmp_path, *changes, name=f"{name}.toml"))
        with replaced_training() as trained:
            run_study(spec, tmp_path / f"{name}.journal", processes=0)
        asked.append([digest for digest, seed, jitter in trained if not seed and not jitter])
    assert asked[0] == asked[1] and len(set(asked[0])) == len(asked[0]) > 8


def test_a_loss_scale_on_bfloat16_adds_no_policy(objective: Objective) -> None:
    """The 21 variants of it are one point for the searcher, and one policy to train."""
    plain = SpaceSection(formats=("float32", "bfloat16"), master_weights=(True, False))
    scaled = replace(plain, loss_scales=("none", "fixed", "dynamic"), growth_intervals=(10,))
    counts = []
    for section in (plain, scaled):
        space = make_space(section, objective.model, steps=STEPS)
        effective, choices = Encoding(space), space.choices()
        found: list[dict[str, Any]] = [{}]
        for name, values in choices.items():
            found = [each | {name: value} for each in found for value in values]
        digests = {space.policy(params).digest for params in found}
        counts.append((len(found), len(digests), len({effective.row(each) for each in found})))
    (few, policies, rows), (many, *same) = counts
    assert many == 30 * few and same == [policies, rows]
    assert policies == rows == 15


def test_what_is_stored_in_float32_has_masters(space: Space) -> None:
    policy = preset("bfloat16", space.layers)
    assert {row.param for _, row in policy.layers} == {"float32"} and policy.master_weights
    assert canonical(replace(policy, master_weights=False)) == canonical(policy) == policy
    stored = policy.with_layers({space.layers[1]: uniform_layer("bfloat16", param="bfloat16")})
    assert not canonical(replace(stored, master_weights=False)).master_weights


def test_a_space_of_one_layer_knows_no_other_net(space: Space) -> None:
    one = space.of_one_layer("fc2")
    assert (one.layers, one.model, one.target, one.rules) == (("fc2",), None, None, ())
    for policy in (*one.uniform(), one.preset("bfloat16")):
        assert [name for name, _ in policy.layers] == ["fc2"]
