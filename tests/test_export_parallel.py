"""A module under an exported policy in torch's data parallel training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel, replicate

from tests.test_export_modules import Net, X, by_hand, load, same

pytestmark = pytest.mark.torch
load = load  # the fixture

HALF = len(X) // 2
PARTS = (X[:HALF], X[HALF : 2 * HALF])


def gradients(module: Any, x: Any) -> dict[str, Any]:
    module.zero_grad()
    module(x).square().mean().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def test_replicas_have_parameters_of_their_own(
    load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As DataParallel makes them, the copies to other devices apart."""
    module = load().apply_policy(Net())

    def copied(tensors: Any, devices: Any, detach: bool = False) -> Any:
        return [[(number + 1) * x for x in tensors] for number in range(len(devices))]

    module_of = sys.modules["torch.nn.parallel.replicate"]
    monkeypatch.setattr(module_of, "_broadcast_coalesced_reshape", copied)
    replicas = replicate(module, [0, 1])
    for number, replica in enumerate(replicas):
        expected = by_hand(replica)
        same(replica(X), expected)
        assert torch.equal(replica.fc1.weight, (number + 1) * module.fc1.weight)
    assert not torch.equal(replicas[1](X), replicas[0](X))
    replicas[1](X).sum().backward()
    assert module.fc1.weight.grad.abs().sum() > 0
    same(module(X), by_hand(module))


def _train(rank: int, folder: str, name: str, state: Any, queue: Any) -> None:
    sys.path.insert(0, folder)
    exported = importlib.import_module(name)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = {}
    for kind in ("ddp", "fsdp", "fsdp first"):
        module = Net()
        module.load_state_dict(state)
        if kind == "fsdp first":
            _shard(module)
        exported.apply_policy(module)
        if kind == "fsdp":
            _shard(module)
        wrapped = DistributedDataParallel(module) if kind == "ddp" else module
        grads = gradients(wrapped, PARTS[rank])
        found[kind] = {key.removeprefix("module."): _whole(grad) for key, grad in grads.items()}
    if rank == 0:
        queue.put(found)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _shard(module: nn.Module) -> None:
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    for part in (*module.children(), module):
        fully_shard(part, mesh=mesh)


def _whole(grad: Any) -> Any:
    return (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).numpy()


@pytest.mark.slow
def test_two_processes_give_the_mean_of_their_gradients(load: Any, tmp_path: Path) -> None:
    """DDP, FSDP2 after the policy and before it; sums of two are the same in any order."""
    exported = load()
    module = exported.apply_policy(Net())
    parts = [{k: g.clone() for k, g in gradients(module, x).items()} for x in PARTS]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    given = (str(tmp_path), exported.__name__, module.state_dict(), queue)
    processes = [context.Process(target=_train, args=(rank, *given)) for rank in range(2)]
    for process in processes:
        process.start()
    found = queue.get(timeout=300)
    for process in processes:
        process.join()
    assert set(found) == {"ddp", "fsdp", "fsdp first"}
    for kind, grads in found.items():
        assert set(grads) == set(parts[0]), kind
        for name, grad in grads.items():
            same(torch.from_numpy(grad), (parts[0][name] + parts[1][name]) / 2)
