"""The exported torch file on modules as users have them: wrapped, shared, tied, copied, pickled."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.export.torch import export
from policysearch.nn.models import gpt, mlp
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset

pytestmark = pytest.mark.torch

MODEL = mlp((8, 8, 4))
X = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32))


def policy_of(fc1: str = "float16", fc2: str = "bfloat16") -> Policy:
    layers = {"fc1": uniform_layer(fc1), "fc2": uniform_layer(fc2)}
    return preset("torch.autocast.bfloat16", MODEL.layer_names).with_layers(layers)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that writes an exported file and imports it, as users do."""

    def loaded(policy: Policy | None = None, model: Any = MODEL) -> Any:
        monkeypatch.syspath_prepend(tmp_path)
        name = f"exported_{len(list(tmp_path.glob('*.py')))}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(export(policy or policy_of(), model))
        return importlib.import_module(name)

    return loaded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(torch.relu(self.fc1(x)))


class Normed(Net):
    """Has a layer that the policy does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(self.norm(torch.relu(self.fc1(x))))


class Scaled(Net):
    """Has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((4,), 1.0 + 2.0**-10))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * self.scale


class Wrapper(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.model = net

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class Shared(nn.Module):
    """One submodule under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.fc2 = self.fc1

    def forward(self, x: Tensor) -> Any:
        return self.fc2(torch.relu(self.fc1(x)))


class ByKeyword(Net):
    def forward(self, x: Tensor) -> Any:
        return self.fc2(input=torch.relu(self.fc1(input=x)))


class Tied(Net):
    """Calls a product with the weight of another layer."""

    def forward(self, x: Tensor) -> Any:
        return functional.linear(functional.relu(self.fc1(x)), self.fc1.weight)


class Mixed(Net):
    """Multiplies the results of two layers of different formats."""

    def forward(self, x: Tensor) -> Any:
        return self.fc1(x).t() @ self.fc2(x)


def by_hand(module: Any, x: Tensor = X) -> Tensor:
    """Return what fc1 float16, relu, fc2 bfloat16 make of x, by casts alone."""
    fc1, fc2 = module.fc1, module.fc2
    hidden = torch.relu(functional.linear(x.half(), fc1.weight.half(), fc1.bias.half()))
    low = (fc2.weight.bfloat16(), fc2.bias.bfloat16())
    return functional.linear(hidden.bfloat16(), *low).float()


def same(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def gradients(module: Any, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def test_values_and_gradients_are_those_of_casts_by_hand(load: Any) -> None:
    module = Net()
    expected = by_hand(module)
    grads = gradients(module, expected.square().sum())
    plain = copy.deepcopy(module)(X)
    got = load().apply_policy(module)(X)
    same(got, expected)
    assert not torch.equal(expected, plain)
    for name, grad in gradients(module, got.square().sum()).items():
        same(grad, grads[name])


def test_types_names_and_text_stay(load: Any) -> None:
    module = Net()
    text, keys = repr(module), list(module.state_dict())
    load().apply_policy(module)
    assert type(module) is Net and type(module.fc1) is nn.Linear
    assert repr(module) == text and list(module.state_dict()) == keys
    assert [name for name, _ in module.named_modules()] == ["", "fc1", "fc2"]


@pytest.mark.parametrize("make", [Net, Normed, Scaled])
def test_removing_restores_the_module_bit_for_bit(load: Any, make: Any) -> None:
    module, exported = make(), load()
    before = {name: dict(part.__dict__) for name, part in module.named_modules()}
    values = {name: value.clone() for name, value in module.state_dict().items()}
    expected = copy.deepcopy(module)(X)
    exported.apply_policy(module, strict=False)
    with torch.no_grad():
        assert not torch.equal(copy.deepcopy(module)(X), expected)
    assert exported.remove_policy(module) is module
    for name, part in module.named_modules():
        assert part.__dict__.keys() == before[name].keys()
        assert all(part.__dict__[key] is value for key, value in before[name].items())
    for name, value in module.state_dict().items():
        same(value, values[name])
    same(module(X), expected)
    exported.apply_policy(module, strict=False)


def test_parameters_stored_low_are_widened_again(load: Any) -> None:
    exported, module = load(preset("apex.O3", MODEL.layer_names)), Net()
    weight = module.fc1.weight.detach().clone()
    exported.apply_policy(module)
    assert {p.dtype for p in module.parameters()} == {torch.float16}
    same(exported.remove_policy(module).fc1.weight.detach(), weight.half().float())


def test_a_forward_that_was_patched_before_is_called_and_put_back(load: Any) -> None:
    module, exported = Net(), load()
    patched = module.fc1.forward = lambda x: functional.linear(x, module.fc1.weight)
    got = exported.apply_policy(module)(X)
    module_by_hand = copy.deepcopy(module)
    module_by_hand.fc1.bias.data.zero_()
    same(got, by_hand(module_by_hand))
    assert exported.remove_policy(module).fc1.forward is patched


@pytest.mark.parametrize("make", [Normed, Scaled])
def test_parameters_unknown_to_the_policy_are_named_or_follow_the_lists(
    load: Any, make: Any
) -> None:
    exported, module = load(), make()
    where = "'norm'" if make is Normed else "''"
    with pytest.raises(ValueError, match=f"^module: {where} with parameters, unknown") as error:
        exported.apply_policy(module)
    assert "strict=False" in str(error.value) and "\n" not in str(error.value)
    assert not hasattr(module.fc1, "before") and "forward" not in module.fc1.__dict__
    exported.apply_policy(module, strict=False)
    if make is Scaled:
        same(module(X), by_hand(module) * module.scale)
        return
    seen = []
    module.norm.register_forward_hook(lambda _, __, y: seen.append(y.dtype))
    before = module.norm.running_mean.clone()
    module(X)
    assert seen == [torch.float16]  # autocast's lists leave a norm the dtype of its input
    assert not torch.equal(module.norm.running_mean, before)


def test_a_wrapper_is_seen_through(load: Any) -> None:
    exported, net = load(), Net()
    expected = by_hand(net)
    same(exported.apply_policy(Wrapper(net))(X), expected)
    exported.remove_policy(net)
    same(exported.apply_policy(Wrapper(Wrapper(copy.deepcopy(net))))(X), expected)
    same(exported.apply_policy(Wrapper(copy.deepcopy(net)), prefix="model.")(X), expected)
    data_parallel = nn.DataParallel(copy.deepcopy(net))
    same(exported.apply_policy(data_parallel)(X), expected)
    compiled = torch.compile(copy.deepcopy(net), backend="eager")
    same(exported.apply_policy(compiled)(X), expected)
    inside = Wrapper(torch.compile(copy.deepcopy(net), backend="eager"))
    same(exported.apply_policy(inside)(X), expected)
    with pytest.raises(ValueError, match=r"^policy: layers 'fc1', 'fc2' have no counterpart"):
        exported.apply_policy(Wrapper(nn.Linear(8, 4)))


def test_a_layer_named_twice_is_one_layer(load: Any) -> None:
    module = Shared()
    load(policy_of("float16", "float16")).apply_policy(module)
    weight, bias = module.fc1.weight.half(), module.fc1.bias.half()
    hidden = torch.relu(functional.linear(X.half(), weight, bias))
    same(module(X), functional.linear(hidden, weight, bias).float())
    with pytest.raises(ValueError, match=r"^policy: layers 'fc1' and 'fc2' are one submodule"):
        load().apply_policy(Shared())


def test_arguments_by_keyword_are_cast(load: Any) -> None:
    module = load().apply_policy(ByKeyword())
    same(module(X), by_hand(module))


def test_a_float32_layer_takes_a_low_input_by_keyword(load: Any) -> None:
    module = load(policy_of("float16", "float32")).apply_policy(ByKeyword())
    hidden = functional.linear(X.half(), module.fc1.weight.half(), module.fc1.bias.half())
    same(module(X), functional.linear(torch.relu(hidden).float(), *module.fc2.parameters()))


def test_a_tied_head_runs_in_the_widest_format(load: Any) -> None:
    """The policy knows no layer for the module itself."""
    module = load().apply_policy(Tied())
    hidden = functional.linear(X.half(), module.fc1.weight.half(), module.fc1.bias.half())
    same(module(X), functional.linear(torch.relu(hidden).float(), module.fc1.weight))
    assert gradients(module, module(X).sum())["fc1.weight"].dtype == torch.float32


def test_gradients_of_an_embedding_are_summed_before_they_are_rounded(load: Any) -> None:
    """A CPU sums them in the dtype of the table."""
    model = gpt((6,), 11, 8, (8,))
    exported = load(preset("bfloat16", model.layer_names), model)
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, 11, 500))
    grad = torch.from_numpy(rng.standard_normal((500, 8)).astype(np.float32)).bfloat16()
    table = nn.Embedding(11, 8)
    net = nn.ModuleDict({"embed": table})
    exported.LAYERS = {"embed": exported.LAYERS["embed"]}
    made = exported.apply_policy(net)["embed"](ids)
    same(made, table.weight[ids].bfloat16())
    made.backward(grad)
    sums = torch.zeros(11, 8).index_add(0, ids, grad.float())
    torch.testing.assert_close(table.weight.grad, sums.bfloat16().float(), rtol=0, atol=2**-6)
    plain = table.weight.detach().requires_grad_()
    functional.embedding(ids, plain.bfloat16()).backward(grad)
    apart = [(made - sums).abs().max() for made in (table.weight.grad, plain.grad)]
    assert apart[0] < 2**-7 * sums.abs().max() < apart[1]


def test_float16_times_bfloat16_is_float32(load: Any) -> None:
    module = load().apply_policy(Mixed())
    fc1, fc2 = module.fc1, module.fc2
    left = functional.linear(X.half(), fc1.weight.half(), fc1.bias.half()).float()
    right = functional.linear(X.bfloat16(), fc2.weight.bfloat16(), fc2.bias.bfloat16()).float()
    same(module(X), left.t() @ right)


def test_500_layers_are_layers_each(load: Any) -> None:
    model = mlp((8,) * 501)
    policy = preset("bfloat16", model.layer_names)
    net = nn.ModuleDict({f"fc{n}": nn.Linear(8, 8) for n in range(1, 501)})
    exported = load(policy, model)
    exported.apply_policy(net)
    assert {net[f"fc{n}"](X).dtype for n in (1, 250, 500)} == {torch.bfloat16}
