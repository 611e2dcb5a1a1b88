"""Policies drawn at random, trained in torch beside the emulator, and files that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from benchmarks.exported.drawn import drawn
from policysearch.export.targets import target_named
from policysearch.nn.model import DROPPED, Attention, Model
from policysearch.nn.models import lenet5
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.verify import verdict as verdicts
from policysearch.verify.verdict import UNMASKED, verify

DRAW = 17
"""Not that of the benchmark, which draws from the same policies."""
CHAOTIC = 9
"""Of the drawn policies of LeNet-5, one whose loss scale moves elsewhere under most jitter."""


def scaled(**changes: Any) -> Callable[[Policy], Policy]:
    """Return what changes the loss scale of a policy."""
    return lambda policy: replace(policy, loss_scale=replace(policy.loss_scale, **changes))


def swapped(layer: str, name: str) -> Callable[[Policy], Policy]:
    """Return what puts a layer of a policy into another format."""
    return lambda policy: policy.with_layers({layer: uniform_layer(name)}, "swapped")


def gradients(share: float, first: int) -> str:
    """Return text that multiplies every gradient, from the backward pass `first` on."""
    return f"""
right = apply_policy

def apply_policy(module, **options):
    def other(parameter):
        calls = iter(range(1000))
        parameter.register_hook(lambda x: x * {share} if next(calls) >= {first} else x)
    for parameter in right(module, **options).parameters():
        other(parameter)
    return module
"""


def as_it_is(policy: Policy) -> Policy:
    return policy


WRONG: dict[str, tuple[Callable[[Policy], Policy], str]] = {
    "half the loss scale": (scaled(init_scale=2.0**23), ""),
    "later growth": (scaled(growth_interval=21), ""),
    "deeper backoff": (scaled(backoff_factor=0.25), ""),
    "no skips": (as_it_is, "PolicyScaler.skips = False"),
    "conv1 in bfloat16": (swapped("conv1", "bfloat16"), ""),
    "conv2 in bfloat16": (swapped("conv2", "bfloat16"), ""),
    "fc1 in float16": (swapped("fc1", "float16"), ""),
    "fc3 in float32": (swapped("fc3", "float32"), ""),
    "gradients 1% larger from step 12": (as_it_is, gradients(1.01, 12)),
    "gradients 10% larger from step 30": (as_it_is, gradients(1.1, 30)),
}
"""What can be wrong with an exported file: the policy it was made of, and text put after it."""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("index", range(10))
def test_random_policies_of_lenet_agree(index: int) -> None:
    pytest.importorskip("torch")
    verdict = verify(drawn(lenet5().layer_names, index, DRAW), Task())
    assert len(verdict.losses) == 50 and verdict.faults == verdict.undecided == ()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_does_not_pass_where_the_emulator_parts_from_itself(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be wrong of a file, in the most chaotic of the trainings above."""
    pytest.importorskip("torch")
    policy, target = drawn(lenet5().layer_names, CHAOTIC, DRAW), target_named("torch")
    changed, text = WRONG[wrong]
    given = changed(policy)

    class Wrong:
        runs = staticmethod(target.runs)
        losses = staticmethod(target.losses)

        @staticmethod
        def export(policy: Policy, model: Any) -> str:
            return target.export(given, model) + text

    monkeypatch.setattr(verdicts, "target_named", lambda name: Wrong)
    verdict = verify(policy, Task())
    assert verdict.own.partings.min() < 50  # the subject of the test
    assert verdict.faults or verdict.undecided


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("index", range(5))
def test_random_policies_of_an_imported_gpt_agree(index: int) -> None:
    """Attention, softmax and sums are functions in `forward`."""
    task = gpt_task()
    model = task.build_model(task.load_dataset())
    verdict = verify(drawn(model.layer_names, index, DRAW), task)
    assert len(verdict.losses) == 50 and verdict.faults == verdict.undecided == ()


@pytest.mark.torch
def test_functions_in_forward_obey_the_lists() -> None:
    """An imported GPT block under autocast's lists: softmax in float32, on a CPU too."""
    task = gpt_task()
    model = task.build_model(task.load_dataset())
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    assert "softmax" in policy.fp32_ops and {"attn", ""} <= set(model.layer_names)
    verdict = verify(policy, task, steps=10)
    assert verdict.faults == () and verdict.gaps.max() < 1e-6
    losses = verify(listed(policy, "softmax", "low_precision_ops"), task, steps=10).losses
    assert np.abs(losses - verdict.losses).max() > 1e-5


@pytest.mark.torch
def test_parameters_stored_low_are_updated_as_on_the_place() -> None:
    """On a CPU the learning rate is rounded, and whole vectors of a tensor in one rounding."""
    pytest.importorskip("torch")
    task = replace(Task(), optimizer="momentum", learning_rate=0.05)
    names = lenet5().layer_names
    stored = uniform_layer("bfloat16", param="bfloat16")
    policy = replace(
        preset("bfloat16", names).with_layers(dict.fromkeys(names, stored)),
        master_weights=False,
        optimizer_state="bfloat16",
        optimizer_scalars="float32",
    )
    verdict = verify(policy, task, steps=6)
    assert verdict.faults == () and verdict.gaps.max() < 1e-6
    assert verdict.policy.optimizer_scalars == "storage"


@pytest.mark.torch
def test_dropout_under_a_tied_head() -> None:
    """1 / (1 - p) is no number of bfloat16: it is rounded with what it multiplies alone."""
    task = gpt_task("DroppedGPT")
    policy = preset("bfloat16", task.build_model(task.load_dataset()).layer_names)
    verdict = verify(listed(policy, "dropout", "low_precision_ops"), task, steps=4)
    assert verdict.faults == () and verdict.gaps.max() < 1e-6


@pytest.mark.torch
def test_an_lstm_after_a_layer_of_another_dtype_than_its_own() -> None:
    """Its results come turned to the head, which therefore adds the bias apart."""
    task = gpt_task("Recurrent")
    policy = preset("bfloat16", task.build_model(task.load_dataset()).layer_names)
    verdict = verify(policy, task, steps=3)
    assert verdict.dtypes["embed"] == "bfloat16" and verdict.policy.master_weights
    assert verdict.faults == () and verdict.gaps.max() < 1e-6


@pytest.mark.torch
@pytest.mark.parametrize("low", [(), ("rsqrt",)])
def test_norms_that_torch_calls_as_one_and_a_dict_of_results(low: tuple[str, ...]) -> None:
    """Group and RMS norm run in float32 inside; a part that computes nothing has no formats."""
    task = normed_task(0.0)
    model = task.build_model(task.load_dataset())
    assert "unused" not in model.layer_names
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    for op in low:
        policy = listed(policy, op, "low_precision_ops")
    verdict = verify(policy, task, steps=4)
    assert verdict.faults == () and verdict.gaps.max() < 1e-6


@pytest.mark.torch
@pytest.mark.parametrize("net", ["Normed", "Attending", "Gated"])
def test_a_dropout_inside_a_call_of_torch_is_left_out_on_both_sides(net: str) -> None:
    kernel: Attention = "flash" if net == "Attending" else "written"
    task = replace(normed_task(0.1, net), attention=kernel)
    model = task.build_model(task.load_dataset())

    def masks(model: Model) -> int:
        nodes = task.tracing(model, task.batch_size).float32.nodes
        return sum(n.op.kind == "source" and DROPPED in n.attributes for n in nodes)

    assert masks(model) - masks(model.without_inner_masks()) == 1
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    verdict = verify(policy, task, steps=4)
    assert UNMASKED in verdict.unlike and verdict.faults == () and verdict.gaps.max() < 5e-5
    plain = normed_task(0.0)
    float32 = preset("float32", plain.build_model(plain.load_dataset()).layer_names)
    assert UNMASKED not in verify(float32, plain, steps=1).unlike


@pytest.mark.torch
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_optimizer_of_torch_keeps_its_state_as_each_parameter_is_stored(
    optimizer: Literal["momentum", "adam"],
) -> None:
    """In a net that returns nothing but a loss of its own, below zero."""
    task = replace(towers_task(), optimizer=optimizer)
    model = task.build_model(task.load_dataset())
    formats = {"fc1": "bfloat16", "fc2": "float16", "fc3": "float32"}
    layers = {name: uniform_layer(each, param=each) for name, each in formats.items()}
    asked = replace(
        preset("torch.autocast.bfloat16", model.layer_names).with_layers(layers),
        master_weights=False,
        optimizer_scalars="storage",  # of a CPU
    )
    policy = target_named("torch").runs(asked, model)
    assert {name: policy.state_of(name) for name in formats} == formats
    verdict = verify(policy, task, steps=10)
    assert verdict.losses.max() < 0.0
    assert verdict.faults == () and verdict.gaps.max() < 1e-5


def towers_task() -> Task:
    """Return a task of one tower for two inputs, drawn together where they are alike."""
    torch = pytest.importorskip("torch")
    import policysearch
    from tests.nets_of_torch import Towers

    rng = np.random.default_rng(0)
    x, alike = rng.standard_normal((96, 8)).astype(np.float32), np.ones(96, np.float32)
    y = x + 0.1 * rng.standard_normal((96, 8)).astype(np.float32)
    data = policysearch.Dataset("own", (x, y), alike, 64, 32, 1)
    example = torch.zeros(2, 8), torch.zeros(2, 8), torch.zeros(2)
    torch.manual_seed(0)
    model = policysearch.from_torch(Towers(), example, loss="own", labels="alike")
    # An epsilon that float16 has: with Adam's own it divides by zero, here as in torch.
    return Task(model=model, data=data, batch_size=16, learning_rate=0.01, epsilon=1e-3)


def normed_task(share: float, net: str = "Normed") -> Task:
    """Return a task of a net with a dropout inside a call of torch where `share` is not 0."""
    torch = pytest.importorskip("torch")
    import policysearch
    from tests import nets_of_torch

    x = np.random.default_rng(0).standard_normal((96, 2, 8)).astype(np.float32)
    labels = x[:, 0, :3].argmax(1)
    data = policysearch.Dataset("own", (x,), labels, train_count=64, validation_count=32, classes=3)
    torch.manual_seed(0)
    model = policysearch.from_torch(getattr(nets_of_torch, net)(share), torch.zeros(2, 2, 8))
    return Task(
        model=model,
        data=data,
        batch_size=8,
        loss="token_cross_entropy",
        optimizer="momentum",
        learning_rate=0.01,
    )


def listed(policy: Policy, op: str, name: str) -> Policy:
    """Return the policy with an op in the list of this name."""
    lists = ("low_precision_ops", "fp32_ops", "promote_ops")
    others = {x: tuple(known for known in getattr(policy, x) if known != op) for x in lists}
    return replace(policy, **{**others, name: (*others[name], op)})  # type: ignore[arg-type]


def gpt_task(name: str = "NanoGPT") -> Task:
    """Return a task of an imported GPT block: the next token of a sequence modulo a number."""
    torch = pytest.importorskip("torch")
    import policysearch
    from tests import nets_of_torch
    from tests.nets_of_torch import TIME, TOKENS

    ids = np.random.default_rng(0).integers(0, TOKENS, (600, TIME))
    sums = (ids + np.roll(ids, 1, axis=1)) % TOKENS
    data = policysearch.Dataset(
        "sums", (ids,), sums, train_count=400, validation_count=200, classes=TOKENS
    )
    example = torch.zeros(2, TIME, dtype=torch.long)
    model = policysearch.from_torch(getattr(nets_of_torch, name), example, name="gpt")
    return Task(model=model, data=data, batch_size=16, loss="token_cross_entropy")


@pytest.mark.torch
def test_what_drops_nothing_inside_a_call_is_the_same_model() -> None:
    models: list[Any] = [normed_task(share).model for share in (0.0, 0.1)]
    plain, dropping = models
    assert plain.without_inner_masks() is plain
    assert dropping.without_inner_masks() is not dropping
    again = dropping.without_inner_masks()
    assert again.without_inner_masks() is again and again.layer_names == dropping.layer_names


@pytest.mark.torch
def test_what_is_about_to_be_trained_is_told_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    task, told = normed_task(0.0), list[str]()

    def begun(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("policysearch.verify.verdict.trained_in_torch", begun)
    policy = preset("float32", task.build_model(task.load_dataset()).layer_names)
    with pytest.raises(KeyboardInterrupt):
        verify(policy, task, steps=1, progress=told.append)
    assert told == ["torch"]
