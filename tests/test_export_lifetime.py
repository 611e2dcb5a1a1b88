"""What befalls a module that has a policy: moved, wrapped, resumed, given another one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import threading
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from policysearch.policy.loss_scale import LossScale
from tests.test_export_modules import Net, Normed, X, by_hand, load, policy_of, same

__all__ = ["load"]

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_a_module_may_be_moved_to_another_dtype(load: Any, dtype: Any, training: bool) -> None:
    """Norms too, whose function in torch wants statistics in float32 or in the input's dtype."""
    module = load().apply_policy(Normed(), strict=False).train(training).to(dtype)
    norm = copy.deepcopy(module.norm).float()
    x, first = X.to(dtype), module.fc1
    hidden = torch.relu(functional.linear(x.half(), first.weight.half(), first.bias.half()))
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    given = (mean, variance, norm.weight, norm.bias, training, norm.momentum, norm.eps)
    normed = functional.batch_norm(hidden, *given).bfloat16()
    low = (module.fc2.weight.bfloat16(), module.fc2.bias.bfloat16())
    same(module(x), functional.linear(normed, *low).float())
    same(module.norm.running_mean, mean.to(dtype))
    same(module.norm.running_var, variance.to(dtype))
    assert training == (not torch.equal(mean, norm.running_mean))
    module(x).sum().backward()
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {dtype}


def test_a_forward_keeps_its_signature(load: Any) -> None:
    """Trainers read it, and torch.export takes dynamic shapes by the names in it."""
    exported = load()
    module = exported.apply_policy(Net().eval())
    for other in (module, copy.deepcopy(module)):
        for name in ("", "fc1"):
            found = inspect.signature(other.get_submodule(name).forward)
            assert found == inspect.signature(Net().get_submodule(name).forward)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(module, (X,), dynamic_shapes={"x": {0: batch}})
    same(program.module()(X[:3]), module(X[:3]))


def test_a_policy_of_another_file_is_seen(load: Any) -> None:
    """A file that is imported anew is another file too."""
    first, second = load(), load(policy_of("bfloat16", "bfloat16"))
    module = first.apply_policy(Net())
    with pytest.raises(ValueError, match="already been applied to this module; remove it first"):
        second.apply_policy(module)
    same(module(X), by_hand(module))
    second.remove_policy(module)
    assert "forward" not in vars(module) | vars(module.fc1)
    assert not torch.equal(second.apply_policy(module)(X), by_hand(module))


def test_a_forward_that_something_else_replaced_is_not_taken_off(load: Any) -> None:
    exported = load()
    module = exported.apply_policy(Net())
    ours = module.forward
    module.forward = lambda x: ours(2.0 * x)
    with pytest.raises(ValueError, match=r"^forward of Net was replaced; put it back first$"):
        exported.remove_policy(module)
    with pytest.raises(ValueError, match="already been applied"):
        exported.apply_policy(module)
    same(module(X), by_hand(module, 2.0 * X))
    module.forward = ours
    assert "forward" not in vars(exported.remove_policy(module))


def test_a_compiled_module_follows_when_a_policy_comes_and_goes(load: Any) -> None:
    exported, module = load(), Net().eval()
    compiled = torch.compile(module, backend="eager")
    bare = compiled(X)
    for given in (module, compiled):
        exported.apply_policy(given)
        same(compiled(X), by_hand(module))
        exported.remove_policy(given)
        same(compiled(X), bare)
        assert not torch.equal(bare, by_hand(module))


def test_threads_do_not_meet(load: Any) -> None:
    """As a server has them; one of them calls another module in between."""
    module, other = load().apply_policy(Net().eval()), Net().eval()
    made: list[Any] = []

    def calls() -> None:
        made.extend((module(X), other(X)) for _ in range(20))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 80
    for got, bare in made:
        same(got, by_hand(module))
        same(bare, other(X))


SCALES = {
    "dynamic": LossScale("dynamic", 2.0**60, growth_interval=2),
    "taken": LossScale("fixed", 128.0, skip_on_overflow=False),
    "schedule": LossScale("schedule", 2.0, schedule=((1, 4.0), (5, 16.0))),
}


def begun(exported: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    module = exported.apply_policy(Net())
    optimizers = [
        torch.optim.SGD(module.fc1.parameters(), 0.1, momentum=0.9),
        torch.optim.Adam(module.fc2.parameters(), 0.01),
    ]
    return module, optimizers, exported.make_grad_scaler()


def stepped(module: Any, optimizers: Any, scaler: Any, steps: int) -> None:
    """Take steps of two halves of a batch, two optimizers and clipped gradients."""
    for _ in range(steps):
        module.zero_grad()
        for half in (X[:2], X[2:]):
            scaler.scale(module(half).square().sum()).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("kind", SCALES)
def test_training_goes_on_from_a_file_to_the_same_bits(load: Any, kind: str) -> None:
    """State of module, optimizers and loss scale through the safe loader of torch."""
    exported = load(dataclasses.replace(policy_of("float16", "float16"), loss_scale=SCALES[kind]))
    module, _, scaler = whole = begun(exported)
    stepped(*whole, 60)
    assert scaler.steps == 60 and (scaler.skipped > 20) == (kind == "dynamic")
    first = begun(exported)
    stepped(*first, 50)
    file = io.BytesIO()
    parts = [first[0], *first[1], first[2]]
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    second = begun(exported)
    for part, state in zip([second[0], *second[1], second[2]], torch.load(file), strict=True):
        part.load_state_dict(state)
    stepped(*second, 10)
    assert second[2].state_dict() == scaler.state_dict()
    for got, expected in zip(second[0].parameters(), module.parameters(), strict=True):
        same(got, expected)
        assert got.isfinite().all()


@pytest.mark.parametrize("kind", ["dynamic", "taken"])
def test_a_second_step_before_the_update_is_refused(load: Any, kind: str) -> None:
    """Its gradients would still be scaled."""
    policy = dataclasses.replace(policy_of(), loss_scale=SCALES[kind])
    module, (optimizer, _), scaler = begun(load(policy))
    scaler.scale(module(X).sum()).backward()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    scaler.update()
    scaler.scale(module(X).sum()).backward()
    scaler.step(optimizer)
