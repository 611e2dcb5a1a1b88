"""What every optimizer has to do, the one that arrives tomorrow too."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from policysearch.commands.keys import study_file_page
from policysearch.cost.devices import DEVICES
from policysearch.cost.memory import step_memory
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import step_time
from policysearch.data.datasets import load_dataset
from policysearch.emulator.compile import Step, compile_graph
from policysearch.export.targets import targets
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph
from policysearch.nn.models import mlp
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.optimizers.optimizer import Optimizer, TorchClass, rules, trained
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast, fast_ways, quantise
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train.checkpoint import Checkpoint
from policysearch.train.feeding import initial_parameters
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, started
from tests.studies import write_study

NET = mlp((64, 32, 64), "tanh")
WIDE = mlp((2048, 2048, 2048))
BATCH, STEPS, RATE = 8, 6, 0.05
SETTINGS: dict[str, Any] = {"momentum": 0.8, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}
VARIED: dict[str, Any] = {
    **{name: value / 2 for name, value in SETTINGS.items()},
    **{"dampening": 0.3, "nesterov": True, "weight_decay": 0.1},
}

KINDS = pytest.mark.parametrize("kind", trained())
DECAYS = pytest.mark.parametrize(
    "decay", [{}, {"weight_decay": 0.5}, {"weight_decay": 0.5, "decays": "matrices"}]
)


def traced(kind: str, **settings: Any) -> Graph:
    return trace_step(NET, "softmax_cross_entropy", Optimizer(kind, **settings), BATCH)


def begun(graph: Graph) -> Step:
    """Return the compiled step with random parameters."""
    step = compile_graph(graph)
    for name, value in NET.init(np.random.default_rng(0)).items():
        step.arrays[name][...] = value
    step.arrays[LOSS_SCALE][...] = step.arrays[INVERSE_SCALE][...] = 1.0
    step.arrays[LEARNING_RATE][...] = RATE
    return step


def gradients(step: Step, count: int = STEPS) -> Iterator[dict[str, FloatArray]]:
    """Yield the gradients of every step on a random batch; the update follows when asked on."""
    rng = np.random.default_rng(1)
    for number in range(1, count + 1):
        step.arrays[STEP_NUMBER][...] = number
        step.arrays[NET.inputs[0].name][...] = rng.standard_normal((BATCH, 64))
        step.arrays[TARGETS][...] = np.eye(64)[rng.integers(0, 64, BATCH)]
        step.forward_backward()
        yield {spec.name: step.value(f"grad:{spec.name}").copy() for spec in NET.parameters()}
        step.apply_updates()


def changed(optimizer: Optimizer, dims: int) -> Optimizer:
    """Return the optimizer as it is for parameters of so many dimensions."""
    spared = optimizer.decays == "matrices" and dims < 2
    return replace(optimizer, weight_decay=0.0) if spared else optimizer


@KINDS
def test_it_names_states_and_settings_there_are(kind: str) -> None:
    row = rules()[kind]
    assert row.plain and row.formula and row.source and row.name == kind
    assert set(row.reads) <= {*SETTINGS, *VARIED} and "weight_decay" in row.reads
    names = [state for part in row.parts for state in part.states]
    assert len(set(names)) == len(names)


@DECAYS
@KINDS
def test_an_update_is_its_formula(kind: str, decay: dict[str, Any]) -> None:
    optimizer = Optimizer(kind, **SETTINGS, **decay)
    step = begun(traced(kind, **SETTINGS, **decay))
    coarse = dict[str, float]()
    expected: dict[str, np.ndarray[Any, Any]] = {}
    for number, grads in enumerate(gradients(step), 1):
        for name, value in expected.items():
            atol = coarse.get(name, 1e-6)
            np.testing.assert_allclose(step.arrays[name], value, rtol=1e-4, atol=atol)
        for name, grad in grads.items():
            row = optimizer.rule.of(grad.shape)
            assert row.plain is not None
            own = [f"{name}.{state}" for state in row.states]
            param, *states = (step.arrays[key].astype(np.float64) for key in (name, *own))
            settings = changed(optimizer, param.ndim)
            new, moved = row.plain(
                settings, param, tuple(states), grad.astype(np.float64), RATE, number
            )
            expected |= dict(zip(own, new, strict=True)) | {name: moved}
            assert (moved != param).mean() > 0.5
            # products in bfloat16, of which the formula rounds none
            if row.products(param.shape):
                coarse[name] = 0.05 * abs(moved - param).max()


@pytest.mark.torch
@DECAYS
@KINDS
def test_an_update_is_torchs(kind: str, decay: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    from policysearch.verify.torch_optimizer import torch_optimizer

    optimizer = Optimizer(kind, **SETTINGS, **decay)
    if optimizer.rule.torch is None:
        with pytest.raises(InputError, match=f"optimizer: '{kind}' is not in torch; expected one"):
            optimizer.in_torch()
        return
    step = begun(traced(kind, **SETTINGS, **decay))
    names = [spec.name for spec in NET.parameters()]
    tensors = {key: torch.tensor(np.array(step.arrays[key], order="C")) for key in names}
    theirs = [
        torch_optimizer(changed(optimizer, tensor.dim()), [tensor], RATE)
        for tensor in tensors.values()
    ]
    coarse = dict.fromkeys(tensors, 1e-6)
    for grads in gradients(step):
        for key, tensor in tensors.items():
            np.testing.assert_allclose(
                step.arrays[key], tensor.numpy(), rtol=1e-4, atol=coarse[key]
            )
            # of products in bfloat16 a bit that turns grows by five steps of Newton and Schulz
            if optimizer.rule.of(tuple(tensor.shape)).products(tuple(tensor.shape)):
                coarse[key] = 0.05 * RATE
            tensor.grad = torch.from_numpy(np.array(grads[key], order="C"))
        for one in theirs:
            one.step()


@KINDS
def test_states_begin_at_zero_have_the_declared_shape_and_are_all_replaced(kind: str) -> None:
    graph, row = traced(kind), rules()[kind]
    shapes = {spec.name: spec.shape for spec in NET.parameters()}
    states = {
        f"{name}.{state}": own
        for name, shape in shapes.items()
        for state, own in row.kept(shape).items()
    }
    sources = {node.name: node for node in graph.nodes if node.op.kind == "source"}
    assert {n.name: n.shape for n in sources.values() if n.op.name == "state"} == states
    assert {graph.nodes[old].name for old, _ in graph.updates} == {*shapes, *states}
    assert all(graph.nodes[new].shape == graph.nodes[old].shape for old, new in graph.updates)
    step = begun(graph)
    assert not any(step.arrays[name].any() for name in states)
    assert len(list(gradients(step, 2))) == 2
    assert all(step.arrays[name].any() for name in states)


@pytest.mark.torch
@pytest.mark.parametrize("kind", [kind for kind, row in rules().items() if "torch." in row.source])
def test_it_reads_what_its_class_in_torch_takes(kind: str) -> None:
    """Beside what no kind of ours varies, as rho; "sgd" and "rmsprop" are without momentum."""
    torch = pytest.importorskip("torch")
    row = rules()[kind]
    module, _, name = row.source.partition(";")[0].rpartition(".")
    assert module == "torch.optim"
    classes = {name, *(part.torch.name for part in row.parts if part.torch)}
    taken = {
        option
        for each in classes
        for option in inspect.signature(getattr(torch.optim, each)).parameters
    }
    ours = {"betas": {"beta1", "beta2"}, "alpha": {"beta2"}, "eps": {"epsilon"}}
    known = set().union(*(ours.get(name, {name}) & {*SETTINGS, *VARIED} for name in taken))
    if kind == "adafactor":  # its two are a least variance and a least parameter
        known -= {"epsilon"}
    if kind in ("sgd", "rmsprop"):
        known -= {"momentum", "dampening", "nesterov"}
    assert set(row.reads) == known


@pytest.mark.parametrize("setting", VARIED)
@KINDS
def test_what_it_reads_changes_it_and_nothing_else_does(kind: str, setting: str) -> None:
    reads = setting in rules()[kind].reads
    if setting == "nesterov" and not reads:
        with pytest.raises(InputError, match="nesterov: True with kind"):
            Optimizer(kind, nesterov=True)
        return

    def nodes(**settings: Any) -> list[Any]:
        return [(n.op.name, n.inputs, n.attrs) for n in traced(kind, **settings).nodes]

    assert (nodes(**SETTINGS) != nodes(**{**SETTINGS, setting: VARIED[setting]})) is reads


@KINDS
def test_its_price_and_memory_count_the_declared_tensors(kind: str) -> None:
    """In as many kernels; the finite check rides along."""
    row, count = rules()[kind], sum(math.prod(spec.shape) for spec in WIDE.parameters())
    step = trace_step(WIDE, "softmax_cross_entropy", Optimizer(kind), BATCH)
    graph = apply_policy(step, preset("float32", WIDE.layer_names))
    priced = step_time(graph, DEVICES["A100-SXM4-40GB"], STACKS["torch.eager"]).kernels
    multiplied = {n.id for n in graph.nodes if n.op.kind == "gemm" and n.role == "update"}
    updates = [kernel for kernel in priced if kernel.role == "update"]
    products = [kernel for kernel in updates if multiplied & {*kernel.node_ids}]
    declared = [row.of(spec.shape).products(spec.shape) for spec in WIDE.parameters()]
    assert len(products) == len(multiplied) == sum(map(len, declared))
    flops = (2 * math.prod(product) for own in declared for product in own)
    assert sum(kernel.flops for kernel in products) == sum(flops)
    moved = [kernel.bytes / count for kernel in updates if kernel not in products]
    assert sum(moved) <= 4.001 * sum(map(sum, row.separate))
    if row.fused:
        assert sum(moved) == pytest.approx(4 * row.fused_tensors, rel=1e-5)
        assert len(moved) == len(row.fused)
    kept = (own for spec in WIDE.parameters() for own in row.kept(spec.shape).values())
    assert step_memory(graph).optimizer_bytes == 4 * sum(map(math.prod, kept))


@pytest.mark.parametrize("fast", fast_ways())
@KINDS
def test_every_way_gives_the_bits_of_the_reference(kind: str, fast: Fast) -> None:
    net = mlp((12, 8, 10))
    graph = trace_step(net, "softmax_cross_entropy", Optimizer(kind, **SETTINGS), BATCH)
    policy = preset("bfloat16", net.layer_names)
    for each in (policy, replace(policy, optimizer_order="eager", optimizer_state="float16")):
        low = apply_policy(graph, each)
        assert_gives_the_bits_of_the_reference(low, started(low, net), fast, steps=3)


@pytest.mark.parametrize(
    ("order", "scalars"), [("fused", "float32"), ("eager", "float32"), ("eager", "storage")]
)
@KINDS
def test_it_trains_without_masters(
    kind: str, order: Literal["fused", "eager"], scalars: Literal["float32", "storage"]
) -> None:
    """All it keeps is on the grid of bfloat16 after every step, near the float32 training."""
    low, form = "bfloat16", format_named("bfloat16")
    layers = {layer: uniform_layer(low, param=low) for layer in NET.layer_names}
    policy = replace(
        preset("apex.O3", NET.layer_names).with_layers(layers),
        optimizer_state=low,
        optimizer_order=order,
        optimizer_scalars=scalars,
    )
    graph = traced(kind, **SETTINGS, weight_decay=0.01)
    exact, stored = begun(graph), begun(apply_policy(graph, policy))
    start = {spec.name: stored.arrays[spec.name].copy() for spec in NET.parameters()}
    for step in (exact, stored):
        assert len(list(gradients(step))) == STEPS
    for old, _new in graph.updates:
        name = graph.nodes[old].name
        value = stored.arrays[name]
        np.testing.assert_array_equal(quantise(np.array(value), form), value)
        if name in start:
            assert (value != start[name]).mean() > 0.1
        # Where a class of torch takes the epsilon of bfloat16, 2^-7, for its least root, gradients
        # below it are not scaled up: tests/test_optimizers_of_torch.py compares the bits.
        if name in start and not (order == "eager" and rules()[kind].epsilon_of):
            moved, expected = value - start[name], exact.arrays[name] - start[name]
            assert np.abs(moved - expected).mean() < 0.5 * np.abs(expected).mean()


def task_of(kind: str, steps: int) -> Task:
    return Task(
        model="mlp",
        widths=(16,),
        data="digits",
        optimizer=kind,
        learning_rate=0.003,
        batch_size=32,
        steps=steps,
        tail_steps=5,
        **SETTINGS,
    )


def trainer_of(kind: str, **changes: Any) -> tuple[Trainer, Any]:
    """Return the trainer of a small net in bfloat16 with masters, and one batch."""
    data = load_dataset("digits")
    task = task_of(kind, 60)
    model = task.build_model(data)
    policy = replace(preset("bfloat16", model.layer_names), **changes)
    trainer = Trainer(model, task, policy, seed=0)
    trainer.load(initial_parameters(model, 0))
    (images,), labels = data.train
    return trainer, ((images[:32],), labels[:32])


@KINDS
def test_with_masters_it_learns_a_batch(kind: str) -> None:
    trainer, batch = trainer_of(kind)
    losses = [trainer.step(*batch)[0] for _ in range(30)]
    assert losses[-1] < losses[0] - 0.01 and np.isfinite(losses).all()


@KINDS
def test_a_skipped_step_moves_nothing(kind: str) -> None:
    """Neither parameters nor states, nor the count of updates."""
    trainer, ((images,), labels) = trainer_of(kind, loss_scale=LossScale("dynamic", 1024.0))
    trainer.step((images,), labels)
    first, updates = trainer.checkpoint("x", []).arrays, trainer.updates_done
    _, _, skipped = trainer.step((np.full_like(images, np.inf),), labels)
    assert skipped and trainer.updates_done == updates == 1
    second = trainer.checkpoint("x", []).arrays
    assert all(np.array_equal(first[name], second[name]) for name in first)


@KINDS
def test_it_goes_on_from_a_checkpoint_to_the_same_bits(kind: str) -> None:
    whole, batch = trainer_of(kind)
    part, _ = trainer_of(kind)
    taken = [part.step(*batch) for _ in range(3)]
    kept = Checkpoint.from_bytes(part.checkpoint("x", taken).to_bytes())
    resumed, _ = trainer_of(kind)
    resumed.restore(kept)
    losses = [whole.step(*batch)[0] for _ in range(6)]
    assert [resumed.step(*batch)[0] for _ in range(3)] == losses[3:]


@KINDS
def test_a_study_trains_prices_and_exports_with_it(kind: str, tmp_path: Path) -> None:
    path = write_study(
        tmp_path,
        *(("[task]\n", f'[task]\noptimizer = "{kind}"\n'), ("trials = 6", "trials = 2")),
        *(("seeds = [0, 1]", "seeds = [0]"), ("learning_rate = 0.1", "learning_rate = 0.01")),
    )
    spec = load_spec(path)
    assert spec.task.build_optimizer().kind == kind
    results = run_study(spec, tmp_path / "tiny.journal", processes=0)
    assert len(results.trials) == 2 and all(trial.cost for trial in results.trials)
    model = spec.task.build_model(spec.task.load_dataset())
    policy = preset("bfloat16", model.layer_names)
    for target in targets().values():
        assert policy.digest in target.export(policy, model)


@pytest.mark.torch
@KINDS
def test_verify_trains_it_or_refuses_in_one_line(kind: str) -> None:
    pytest.importorskip("torch")
    from policysearch.verify.verdict import verify

    task = task_of(kind, 10)
    policy = preset("torch.autocast.bfloat16", task.build_model(task.load_dataset()).layer_names)
    if rules()[kind].torch is None:
        with pytest.raises(InputError) as refused:
            verify(policy, task, steps=10)
        assert f"'{kind}' is not in torch; expected one of" in str(refused.value)
        assert "\n" not in str(refused.value)
    else:
        assert verify(policy, task, steps=10).faults == ()


@pytest.mark.torch
def test_a_class_without_a_fused_kernel_is_refused_in_that_order_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from policysearch.verify.torch_optimizer import torch_optimizer

    row = TorchClass("NAdam", lambda optimizer: {}, fused=False)
    rule = replace(rules()["sgd"], torch=row)
    monkeypatch.setattr(Optimizer, "rule", property(lambda self: rule))
    with pytest.raises(InputError, match=r"expected 'eager', torch.optim.NAdam has no fused"):
        torch_optimizer(Optimizer("sgd"), [torch.zeros(2)], RATE, fused=True)
    for fused in (None, False):
        optimizer = torch_optimizer(Optimizer("sgd"), [torch.zeros(2)], RATE, fused)
        assert isinstance(optimizer, torch.optim.NAdam)


@KINDS
def test_the_study_file_page_names_it(kind: str) -> None:
    section = study_file_page().split("## [task]\n")[1].split("\n## ")[0]
    (row,) = (line for line in section.split("\n") if line.startswith("| `optimizer`"))
    assert f'`"{kind}"`' in row


@pytest.mark.parametrize("kind", [*(kind for kind in rules() if kind not in trained()), "lionn"])
def test_what_is_priced_only_or_unknown_is_refused(kind: str, tmp_path: Path) -> None:
    path = write_study(tmp_path, ("[task]\n", f'[task]\noptimizer = "{kind}"\n'))
    with pytest.raises(InputError, match=r"task.optimizer: .*; expected one of sgd, momentum"):
        load_spec(path)
