"""Linear layers in float8 in the exported torch file, by torchao."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torchao")

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.emulator.compile import compile_graph
from policysearch.export.torch import losses, runs
from policysearch.nn.models import mlp
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.verify.verdict import verify
from tests.test_export_compiled import assert_compiled_as_eager
from tests.test_export_modules import load, same

pytestmark = [
    pytest.mark.torch,
    pytest.mark.torchao,
    # inside of torch, when it compiles
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
load = load  # the fixture

MODEL = mlp((32, 48, 10))
X = torch.from_numpy(np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32))
Y = torch.from_numpy(np.random.default_rng(1).integers(0, 10, len(X)))
MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def policy_of(scaling: Scaling | None = None) -> Policy:
    layers = {"fc1": uniform_layer("float8_e4m3fn"), "fc2": uniform_layer("float8_e4m3fn")}
    policy = preset("torch.autocast.bfloat16", MODEL.layer_names).with_layers(layers)
    return replace(policy, scaling=scaling or Scaling("current"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 48), nn.Linear(48, 10)
        self.kept = [self.fc1]  # a module is also reached past its name

    def forward(self, x: Tensor) -> Any:
        return self.fc2(torch.relu(self.kept[0](x)))


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x on the grid of an 8-bit dtype, scaled so that its largest value is the largest."""
    scale = (MAX[dtype] / x.abs().max().double()).float()
    return (x * scale).clamp(-MAX[dtype], MAX[dtype]).to(dtype).float() / scale


def low(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def test_values_and_gradients_are_those_of_casts_by_hand(load: Callable[..., Any]) -> None:
    module = load(policy_of(), MODEL).apply_policy(Net())
    x = X.clone().requires_grad_()
    made = module.fc1(x)
    given, weight = (narrow(t.detach(), torch.float8_e4m3fn) for t in (x, module.fc1.weight))
    expected = (given @ weight.t() + low(module.fc1.bias.detach())).bfloat16()
    assert made.dtype == torch.bfloat16 and (made == expected).float().mean() > 0.99
    made.backward(torch.ones_like(made).cumsum(1) / 7)
    grad = narrow(low(torch.ones(16, 48).cumsum(1).bfloat16() / 7), torch.float8_e5m2)
    for got, wanted in (
        (x.grad, low(grad @ weight)),
        (module.fc1.weight.grad, low(grad.t() @ given)),
    ):
        assert got is not None and got.dtype == torch.float32
        torch.testing.assert_close(got, wanted, rtol=2**-7, atol=1e-6)
        assert (got == wanted).float().mean() > 0.95


def test_the_layer_is_one_of_torchao_and_removing_restores_it(load: Callable[..., Any]) -> None:
    from torchao.float8.float8_linear import Float8Linear

    module, exported = Net(), load(policy_of(), MODEL)
    before, keys = dict(module.fc1.__dict__), list(module.state_dict())
    plain = copy.deepcopy(module)(X)
    exported.apply_policy(module)
    assert type(module.fc1) is Float8Linear and type(module.fc2) is nn.Linear
    assert list(module.state_dict()) == keys and module(X).dtype == torch.float32
    made = module(X)
    same(pickle.loads(pickle.dumps(module.fc1.forward))(X), module.fc1(X))
    assert not torch.equal(made, plain)
    same(exported.remove_policy(copy.deepcopy(module))(X), plain)
    assert exported.remove_policy(module) is module and type(module.fc1) is nn.Linear
    assert module.fc1.__dict__.keys() == before.keys()
    same(module(X), plain)


def test_compiled_gradients_are_the_eager_ones(load: Callable[..., Any]) -> None:
    """Whatever the net, on the grid of bfloat16.

    Between float32 and float8 the compiler leaves that rounding out, so that other numbers may be
    cast to the next one, which moves a gradient by its share of the whole.
    """
    exported = load(policy_of(), MODEL)
    epsilons = dict.fromkeys(("fc1", "fc2"), float(torch.finfo(torch.bfloat16).eps))
    for seed in range(4):
        torch.manual_seed(seed)
        net = exported.apply_policy(Net().bfloat16().float())
        assert_compiled_as_eager(exported.check(net, low(X), Y), epsilons)


@pytest.mark.parametrize("power_of_two", [False, True])
def test_it_trains_as_the_emulator_does(power_of_two: bool) -> None:
    task = Task(model="mlp", data="digits", widths=(32, 32), batch_size=32)
    model = task.build_model(task.load_dataset())
    policy = preset("torchao.tensorwise", model.layer_names)
    verdict = verify(
        replace(policy, scaling=Scaling("current", power_of_two=power_of_two)), task, steps=20
    )
    formats = {name: verdict.policy.layer(name).compute for name in ("fc1", "fc2", "fc3")}
    assert formats == {"fc1": "float8_e4m3fn", "fc2": "float8_e4m3fn", "fc3": "bfloat16"}
    assert verdict.policy.scaling == Scaling("current", power_of_two=power_of_two)
    assert verdict.faults == () and verdict.dtypes["fc1"] == "bfloat16"


def test_what_is_no_linear_is_refused_before_anything_changes(load: Callable[..., Any]) -> None:
    class Other(nn.Linear):
        pass

    module = Net()
    module.fc1 = Other(32, 48)
    with pytest.raises(ValueError, match=r"^policy: a layer in float8_e4m3fn is Other"):
        load(policy_of(), MODEL).apply_policy(module)
    assert "forward" not in module.fc2.__dict__


def test_layers_that_torchao_leaves_alone_are_said() -> None:
    said = losses(policy_of(), MODEL)
    assert said[0].startswith(
        "layer fc2: torch does not compute it in float8_e4m3fn (torchao wants"
    )
    assert "multiples of 16, and its weight is" in said[0] and "it runs in bfloat16" in said[0]
    assert not any("fc1" in line or "scaling" in line for line in said)
    delayed = losses(policy_of(Scaling("delayed")), MODEL)
    assert "recipe 'current'" in delayed[0] and "'delayed' asked" in delayed[-1]
    running = runs(policy_of(), MODEL)
    assert running.layer("fc1") == policy_of().layer("fc1") and runs(running, MODEL) == running


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_the_presets_of_torchao_are_its_own_linears(recipe: str) -> None:
    """Its module adds the bias to the rounded product: a second rounding, unlike nn.Linear's."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    model, rng = mlp((64, 96, 32), "tanh"), np.random.default_rng(0)
    step = trace_step(model, "softmax_cross_entropy", Optimizer("sgd"), 32)
    executable = compile_graph(apply_policy(step, preset(f"torchao.{recipe}", model.layer_names)))
    net = nn.Sequential(OrderedDict(fc1=nn.Linear(64, 96), act=nn.Tanh(), fc2=nn.Linear(96, 32)))
    for name, value in model.init(rng).items():
        value += 0.1 * low(torch.from_numpy(rng.standard_normal(value.shape))).numpy()
        executable.arrays[name][...] = value
        net.get_parameter(name).data = torch.from_numpy(executable.arrays[name].copy())
    x, y = low(torch.from_numpy(rng.standard_normal((32, 64)))), rng.integers(0, 32, 32)
    executable.arrays["images"][...], executable.arrays[TARGETS][...] = x, np.eye(32)[y]
    executable.arrays[LOSS_SCALE][...] = executable.arrays[INVERSE_SCALE][...] = 1.0
    executable.forward_backward()
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    convert_to_float8_training(net, config=config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(x)
    functional.cross_entropy(logits.float(), torch.from_numpy(y)).backward()
    pairs = {"logits": logits} | {f"grad:{n}": p.grad for n, p in net.named_parameters()}
    assert len(pairs) == 5
    for name, theirs in pairs.items():
        assert theirs.count_nonzero() > theirs.numel() / 2
        same = executable.value(name) == theirs.detach().float().numpy()
        assert same.mean() > 0.99, name


class Experts(nn.Module):
    """Two linears, of which each takes the rows that are chosen for it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(32, 48), nn.Linear(32, 48)

    def forward(self, x: Tensor, chosen: Tensor) -> Any:
        y = x.new_zeros(len(x), 48)
        for i, expert in enumerate((self.fc1, self.fc2)):
            rows = torch.where(chosen == i)[0]
            y = y.index_put((rows,), expert(x[rows]).float())
        return y


def test_an_expert_may_get_no_rows(load: Callable[..., Any]) -> None:
    """Its parameters have gradients of zero; those of the other are as without it."""
    net = load(policy_of(), MODEL).apply_policy(Experts())
    chosen = torch.ones(len(X), dtype=torch.long)
    y = net(X, chosen)
    y.square().mean().backward()
    assert y.abs().min() >= 0 and y.abs().max() > 0
    assert net.fc2.weight.grad.abs().max() > 0
    assert not net.fc1.weight.grad.any()


def test_any_number_of_rows_is_taken_on_a_gpu(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its products sum over multiples of 16 alone: torch's own check, with a product by hand."""
    summed: list[int] = []

    def scaled_mm(
        a: Tensor, b: Tensor, *args: Any, scale_a: Tensor, scale_b: Tensor, **_: Any
    ) -> Any:
        summed.append(a.shape[1])
        assert a.shape[1] == b.shape[0] and a.shape[1] % 16 == 0
        return (a.float() / scale_a.reciprocal()) @ (b.float() / scale_b.reciprocal())

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    here, there = Net(), Net()
    there.load_state_dict(here.state_dict())
    x = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    module = load(policy_of(), MODEL)
    for net, device_type in ((here, "cpu"), (there, "cuda")):
        net = module.apply_policy(net, device_type=device_type)
        net(x).float().square().mean().backward()
    assert 16 in summed and not there.fc1.config.emulate
    assert torch.allclose(here.fc1.weight.grad, there.fc1.weight.grad, rtol=1e-2, atol=1e-5)
