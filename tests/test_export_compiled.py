"""The exported torch file under torch's own transforms: compile, export, vmap, checkpoints, DDP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

import policysearch
from policysearch.export.torch import export
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from tests.test_export_modules import MODEL, Net, X, policy_of, same
from tests.test_export_torch import mixed, run, torch_lenet

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # inside of torch
    pytest.mark.filterwarnings("ignore:bf16 and fp16 are mixed:UserWarning"),
]

Y = torch.from_numpy(np.random.default_rng(1).integers(0, 4, len(X)))
EAGER = 1e-5
"""The share of a gradient that compiling moves in float32 and without a policy, at most."""


def exported(policy: Policy | None = None) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(export(policy or policy_of(), MODEL), "exported.py", "exec"), names)
    return names


def assert_compiled_as_eager(found: dict[str, tuple[float, float]], epsilons: Any) -> None:
    """Assert a share of at most 4 epsilons, that something was compiled, and is right without."""
    assert all(bare <= EAGER for _, bare in found.values())
    assert any(max(shares) > 0.0 for shares in found.values())
    for name, (share, _) in found.items():
        assert share <= 4 * epsilons[name.partition(".")[0]], name


def test_compiled_gradients_are_the_eager_ones() -> None:
    file = exported()
    found = file["check"](file["apply_policy"](Net()), X, Y)
    epsilons = {"fc1": torch.finfo(torch.float16).eps, "fc2": torch.finfo(torch.bfloat16).eps}
    # what comes down from fc2 has its epsilon
    assert_compiled_as_eager(found, dict.fromkeys(epsilons, max(epsilons.values())))


@pytest.mark.slow
def test_compiled_gradients_of_lenet_are_the_eager_ones() -> None:
    """At batch 16 torch 2.13 fails without a policy, on a CPU: the check tells."""
    file, policy = run(mixed()), mixed()
    module = file["apply_policy"](torch_lenet())
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.standard_normal((8, 1, 32, 32)).astype(np.float32))
    found = file["check"](module, images, torch.from_numpy(rng.integers(0, 10, 8)))
    formats = {name: policy.layer(name).grad for name in ("conv1", "conv2", "fc1", "fc2", "fc3")}
    epsilons = {name: torch.finfo(getattr(torch, form)).eps for name, form in formats.items()}
    assert_compiled_as_eager(found, dict.fromkeys(epsilons, max(epsilons.values())))


def test_a_check_finds_a_compiler_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves the module as it is."""
    file = exported()
    module = file["apply_policy"](Net())
    expected = module(X)
    # the copy of a module that is "compiled" doubles its result: both are wrong
    monkeypatch.setattr(torch, "compile", lambda net, **_: lambda x: 2 * net(x))
    found = file["check"](module, X, Y)
    assert all(min(shares) > 0.1 for shares in found.values()) and len(found) == 4
    monkeypatch.setattr(torch, "compile", lambda net, **_: net)
    assert set(file["check"](module, (X,), Y).values()) == {(0.0, 0.0)}
    same(module(X), expected)
    assert all(p.grad is None for p in module.parameters())


def test_the_whole_module_is_one_graph() -> None:
    module = exported()["apply_policy"](Net())
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    same(compiled(X), module(X))


def test_an_exported_program_computes_the_same() -> None:
    module = exported()["apply_policy"](Net())
    same(torch.export.export(module, (X,)).module()(X), module(X))
    same(torch.jit.trace(module, (X,))(X), module(X))


def test_functions_of_other_parameters_obey() -> None:
    module = exported()["apply_policy"](Net())
    parameters = {name: 2 * p.detach() for name, p in module.named_parameters()}
    got = torch.func.functional_call(module, parameters, (X,))
    mapped = torch.func.vmap(lambda x: torch.func.functional_call(module, parameters, (x,)))(X)
    with torch.no_grad():
        for p in module.parameters():
            p *= 2
    same(got, module(X))
    unit = torch.finfo(torch.bfloat16).eps * got.abs().max()  # another order of sums
    assert (mapped - got).abs().max() <= unit and mapped.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_recomputes_in_the_same_formats(reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> Any:
            kept = torch.utils.checkpoint.checkpoint(self.fc1, x, use_reentrant=reentrant)
            return self.fc2(torch.relu(kept))

    module = exported()["apply_policy"](Checkpointed())
    x = X.clone().requires_grad_()
    module(x).square().sum().backward()
    grads = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    Net.forward(module, x)  # outside of the policy of the whole, inside those of the layers
    plain = exported()["apply_policy"](Net())
    plain.load_state_dict(module.state_dict())
    plain(X).square().sum().backward()
    for name, p in plain.named_parameters():
        same(grads[name], p.grad)


def test_ddp_of_one_process_agrees_and_so_does_its_float16_hook(tmp_path: Any) -> None:
    module = exported(policy_of("float16", "float32"))["apply_policy"](Net())
    module(X).sum().backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(module)
        wrapped(X).sum().backward()
        for name, p in module.named_parameters():
            same(p.grad, expected[name])
        module.zero_grad()
        wrapped.register_comm_hook(None, fp16_compress_hook)
        wrapped(X).sum().backward()
        assert not torch.equal(module.fc2.weight.grad, expected["fc2.weight"])
        for name, p in module.named_parameters():
            same(p.grad, expected[name].half().float())
    finally:
        torch.distributed.destroy_process_group()


def test_gradients_are_clipped_after_unscaling() -> None:
    file = exported(policy_of("float32", "float32"))
    assert uniform_layer("float32") == policy_of("float32", "float32").layer("fc1")
    module = file["apply_policy"](Net())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    scaler = file["PolicyScaler"]("cpu", init_scale=1024.0)
    scaler.scale(module(X).sum()).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    assert 0.1 < norm < 1000
    before = module.fc2.bias.detach().clone()
    scaler.step(optimizer)
    scaler.update()
    assert (module.fc2.bias - before).norm() <= 0.1 + 1e-6
    assert scaler.steps == 1 and scaler.skipped == 0


def test_a_file_of_a_compiled_part_is_one_of_the_part() -> None:
    class Half(nn.Module):
        def __init__(self, *, compiled: bool) -> None:
            super().__init__()
            part = nn.Linear(6, 8)
            self.part = torch.compile(part, backend="eager") if compiled else part
            self.last = nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.last(self.part(x))

    torch.manual_seed(0)
    net, plain = Half(compiled=True), Half(compiled=False)
    plain.load_state_dict({k.replace("_orig_mod.", ""): v for k, v in net.state_dict().items()})
    x = torch.randn(3, 6)
    model = policysearch.from_torch(net, x)
    names: dict[str, Any] = {}
    exec(export(preset("torch.autocast.bfloat16", model.layer_names), model), names)
    assert {*names["LAYERS"]} == {"part", "last"}
    low = names["apply_policy"](plain)(x)
    same(names["apply_policy"](net)(x), low)
    assert (low == low.bfloat16().float()).all()
