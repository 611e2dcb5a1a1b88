"""Updates rounded by chance onto bfloat16: searched, priced, exported, and trained in torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from policysearch.cost.time import drawn_operations
from policysearch.export.targets import target_named
from policysearch.export.torch_file.reading import read
from policysearch.formats import Rounding
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import AS_STORED, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.train.gradients import Clipping
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task

DRAWN = RoleRounding(update=Rounding("stochastic"))
NET = mlp((64, 16, 10))
SECTION = SpaceSection(
    ("float32", "bfloat16"),
    master_weights=(True, False),
    update_roundings=("nearest_even", "stochastic"),
    optimizer_states=("float32", "bfloat16"),
)


def stored_low(layers: tuple[str, ...], **changes: Any) -> Policy:
    """Return bfloat16 throughout, stored so too, with updates rounded by chance."""
    formats = uniform_layer("bfloat16", param="bfloat16")
    policy = preset("torch.autocast.bfloat16", layers)
    policy = policy.with_layers(dict.fromkeys(layers, formats))
    return replace(policy, **{"master_weights": False, "rounding": DRAWN, **changes})


def test_the_rounding_is_a_decision_that_acts_where_something_is_stored_low() -> None:
    space = make_space(SECTION, NET)
    encoding = Encoding(space)
    low = {f"format.{group.name}": "bfloat16" for group in space.groups}
    drawn = {"update_rounding": "stochastic"}
    found, rows = {}, {}
    for masters in (True, False):
        for state in ("float32", "bfloat16"):
            given = low | {"master_weights": masters, "optimizer_state": state}
            pair = [space.policy(given), space.policy(given | drawn)]
            found[masters, state] = len({policy.digest for policy in pair})
            rows[masters, state] = len({encoding.row(given), encoding.row(given | drawn)})
    assert found == rows == {key: 1 + (key != (True, "float32")) for key in found}
    best = space.policy(low | drawn | {"master_weights": False})
    assert best.rounding == DRAWN and "update:stochastic" in best.name
    assert space.policy(space.project(best)) == best
    float32 = {f"format.{group.name}": "float32" for group in space.groups}
    assert space.policy(float32 | drawn) == space.policy(float32)


def test_the_ladder_has_both_roundings_where_there_are_no_masters() -> None:
    uniform = make_space(SECTION, NET).uniform()
    said = [(p.master_weights, p.rounding.update.mode) for p in uniform]
    assert said == [(True, "nearest_even"), (False, "nearest_even"), (False, "stochastic")]


def test_what_is_stored_by_chance_is_thought_to_cost_less() -> None:
    space = make_space(replace(SECTION, optimizer_states=("float32",)), NET)
    encoding = Encoding(space)
    options = {option.name: option for option in encoding.decisions.places[0]}
    nearest, drawn = (options[f"bfloat16/bfloat16{mark}/float32"] for mark in ("", "~"))
    assert nearest.storage_epsilon == 2.0**-7 and drawn.storage_epsilon == 0.0
    assert nearest.operand_epsilon < drawn.operand_epsilon < 2 * nearest.operand_epsilon


def test_random_bits_are_priced_for_new_values_alone() -> None:
    step = trace_step(NET, "softmax_cross_entropy", Optimizer("adamw"), 8)
    count = sum(int(np.prod(spec.shape)) for spec in NET.parameters())
    for state, drawn in (("float32", 1), (AS_STORED, 3)):
        graph = apply_policy(step, stored_low(NET.layer_names, optimizer_state=state))
        operations = sum(map(drawn_operations, graph.nodes))
        assert operations == drawn * count * drawn_operations(_of_one(graph.nodes))
    nearest = stored_low(NET.layer_names, rounding=RoleRounding())
    assert not sum(map(drawn_operations, apply_policy(step, nearest).nodes))


def _of_one(nodes: Any) -> Any:
    drawn = next(node for node in nodes if node.rounding.mode == "stochastic")
    return replace(drawn, shape=(1,), format="bfloat16")


@pytest.mark.parametrize(("given", "narrow"), [("computed", False), ("param", True)])
def test_gradients_may_be_rounded_to_the_storage_of_their_parameter(
    given: Any, narrow: bool
) -> None:
    """To nearest, as torch rounds them, also where new parameters are rounded by chance."""
    clipping = Clipping(norm=1.0)
    step = trace_step(NET, "softmax_cross_entropy", Optimizer("momentum"), 8, clipping)
    wide = replace(uniform_layer("float32"), param="bfloat16")
    policy = stored_low(NET.layer_names, gradient_storage=given)
    graph = apply_policy(step, policy.with_layers(dict.fromkeys(NET.layer_names, wide)))
    clipped = [node for node in graph.nodes if node.op.name == "clip"]
    assert clipped and {n.format for n in clipped} == {"bfloat16" if narrow else "float32"}
    stored = [n for n in graph.nodes if n.role == "update" and n.format == "bfloat16"]
    new = {i for _, i in graph.updates}
    assert {n.rounding.mode for n in stored if n.id in new} == {"stochastic"}
    others = {n.rounding.mode for n in stored if n.id not in new}
    assert others == ({"nearest_even"} if narrow else set())


@pytest.mark.parametrize("state", ["float32", "bfloat16", AS_STORED])
def test_torch_runs_it_as_it_is(state: str) -> None:
    there, policy = target_named("torch"), stored_low(NET.layer_names, optimizer_state=state)
    running = there.runs(policy, NET)
    assert running.rounding == DRAWN and running.optimizer_state == state
    assert there.runs(running, NET) == running
    assert there.losses(running, NET) == ()
    text = there.export(policy, NET)
    assert "def store_updates" in text
    again = read(text, NET, "file.py").policy
    for name in ("layers", "master_weights", "rounding", "optimizer_order", "gradient_storage"):
        assert getattr(again, name) == getattr(running, name)
    assert again.optimizer_state == state
    assert "store_updates" not in there.export(replace(policy, rounding=RoleRounding()), NET)


def test_what_torch_files_do_not_round_by_chance_is_named() -> None:
    there, policy = target_named("torch"), stored_low(NET.layer_names)
    half = policy.with_layers(
        dict.fromkeys(NET.layer_names, uniform_layer("float16", param="float16"))
    )
    assert there.runs(half, NET).rounding == RoleRounding()
    assert any(line.startswith("rounding: torch rounds as") for line in there.losses(half, NET))
    forward = replace(policy, rounding=replace(DRAWN, fprop=Rounding("stochastic")))
    assert any(line.endswith("but for what updates store") for line in there.losses(forward, NET))


def exported(policy: Policy) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "exported"}
    exec(target_named("torch").export(policy, NET), names)
    return names


@pytest.mark.torch
def test_the_file_rounds_to_a_neighbour_and_keeps_the_mean() -> None:
    torch = pytest.importorskip("torch")
    file = exported(stored_low(NET.layer_names))
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(500) * 2.0 ** rng.integers(-30, 30, 500)).astype(np.float32)
    x[:4] = np.inf, -np.inf, 0.0, 1.5
    tensor = torch.from_numpy(np.tile(x, (4000, 1)))
    made = file["_rounded"](tensor, torch.bfloat16, None, None).float().numpy().astype(np.float64)
    near = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    unit = np.abs(
        np.nextafter(near.astype(ml_dtypes.bfloat16), ml_dtypes.bfloat16(0)).astype(np.float64)
        - near
    )
    finite = np.isfinite(x)
    assert (made[:, ~finite] == x[~finite]).all() and (made[:, 3] == 1.5).all()
    made, exact, unit = made[:, finite], x[finite].astype(np.float64), 2 * unit[finite]
    assert (np.abs(made - exact) <= unit).all() and len(np.unique(made[:, 10])) == 2
    assert (np.abs(made.mean(0) - exact) <= 5 * made.std(0) / 4000**0.5 + 1e-4 * unit).all()
    assert torch.isnan(
        file["_rounded"](torch.tensor([torch.nan]), torch.bfloat16, None, None)
    ).all()


@pytest.mark.torch
def test_the_file_steps_as_the_optimizer_of_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no bit ever drawn both round toward zero: then they can be compared."""
    torch = pytest.importorskip("torch")
    adam = pytest.importorskip("torchao.optim.adam")
    file = exported(stored_low(NET.layer_names, optimizer_state="float32"))
    file["random_bits"] = lambda values, *_: torch.zeros_like(values, dtype=torch.int32)

    def cut(x: Any) -> Any:
        return (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()

    monkeypatch.setattr(adam, "_fp32_to_bf16_sr", cut)
    rng, shape = torch.Generator().manual_seed(0), (64, 16)
    first = torch.randn(shape, generator=rng).bfloat16()
    ours = torch.nn.Parameter(first.clone())
    optimizer = file["store_updates"](torch.optim.AdamW([ours], lr=1e-3, weight_decay=0.1))
    p, m, v = first.clone(), torch.zeros(shape), torch.zeros(shape)
    rate, others = torch.tensor(1e-3), (0.9, 0.999, 0.1, 1e-8, True, True)
    for count in range(1, 20):
        ours.grad = torch.randn(shape, generator=rng).bfloat16()
        optimizer.step()
        adam.single_param_adam(p, ours.grad, torch.tensor(float(count)), m, v, None, rate, *others)
    assert float((p != first).float().mean()) > 0.5
    assert float((ours.data != p).float().mean()) < 0.01
    with pytest.raises(ValueError, match="stored so already"):
        file["store_updates"](optimizer)


TASKS = {
    "momentum": Task(model="mlp", data="digits", learning_rate=0.02),
    "adamw": Task(
        model="mlp",
        data="digits",
        optimizer="adamw",
        learning_rate=0.001,
        weight_decay=0.1,
        clip_norm=0.5,
    ),
    "lenet5": Task(model="lenet5", data="digits32", optimizer="adam", learning_rate=0.001),
}


@pytest.mark.torch
@pytest.mark.parametrize("name", TASKS)
def test_it_trains_in_torch_as_here(name: str) -> None:
    pytest.importorskip("torch")
    from policysearch.verify.verdict import verify

    task = TASKS[name]
    model = task.build_model(task.load_dataset())
    policy = stored_low(
        model.layer_names, optimizer_state="float32" if name == "adamw" else AS_STORED
    )
    verdict = verify(policy, task, steps=20)
    assert verdict.policy.rounding == DRAWN
    assert verdict.faults == verdict.undecided == () and len(verdict.losses) == 20


@pytest.mark.torch
def test_a_file_that_rounds_to_nearest_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from policysearch.export.torch_file.template import STORAGE
    from policysearch.verify.verdict import verify

    wrong = STORAGE.replace("torch.where(finite, moved, bits)", "bits")
    assert wrong != STORAGE
    monkeypatch.setattr("policysearch.export.torch.STORAGE", wrong)
    task = TASKS["momentum"]
    model = task.build_model(task.load_dataset())
    assert verify(stored_low(model.layer_names), task, steps=20).faults


@pytest.mark.torch
@pytest.mark.filterwarnings("error:.*overridden after learning rate scheduler:UserWarning")
@pytest.mark.parametrize("first", ["schedule", "store"])
def test_schedulers_take_the_optimizer_before_and_after(first: str) -> None:
    torch = pytest.importorskip("torch")
    file = exported(stored_low(NET.layer_names))
    parameter = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    makers = {
        "store": lambda: file["store_updates"](optimizer),
        "schedule": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
    }
    made = {name: makers[name]() for name in sorted(makers, key=lambda name: name != first)}
    rates = set()
    for _ in range(8):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        made["schedule"].step()
        rates.add(optimizer.param_groups[0]["lr"])
    assert len(rates) == 8 and parameter.detach().unique().numel() > 1, "rounded by chance"
    with pytest.raises(ValueError, match="its updates are stored so already"):
        file["store_updates"](optimizer)
