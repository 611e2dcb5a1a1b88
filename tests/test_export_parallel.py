"""A module under an exported policy in torch's data parallel training."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel, replicate

from policysearch.policy.loss_scale import LossScale
from tests.test_export_modules import Net, X, by_hand, load, policy_of, same

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


def _reduce(rank: int, folder: str, names: Sequence[str], queue: Any, ranks: int = 2) -> None:
    sys.path.insert(0, folder)
    store = torch.distributed.FileStore(f"{folder}/reduced{ranks}", ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    found = []
    for name in names:
        exported = importlib.import_module(name)
        torch.manual_seed(0)
        wrapped = DistributedDataParallel(exported.apply_policy(Net()))
        assert exported.reduce_gradients(wrapped) is wrapped
        grads = gradients(wrapped, PARTS[rank])
        found.append({key.removeprefix("module."): grad.numpy() for key, grad in grads.items()})
    if rank == 0:
        queue.put(found)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_gradients_are_reduced_in_16_bits(load: Any, tmp_path: Path, ranks: int) -> None:
    """Each rank's are cast, and their mean is summed there; in float32 it is another one."""
    formats = ("bfloat16", "float16")
    wide = policy_of("float32", "float32")
    files = [load(replace(wide, all_reduce=name)) for name in formats]
    assert not hasattr(load(), "reduce_gradients")
    context = torch.multiprocessing.get_context("spawn")
    queue: Any = context.Queue() if ranks > 1 else SimpleQueue()
    given = (str(tmp_path), [file.__name__ for file in files], queue, ranks)
    processes = [context.Process(target=_reduce, args=(rank, *given)) for rank in range(ranks)]
    if ranks == 1:
        _reduce(0, *given)
    for process in processes if ranks > 1 else ():
        process.start()
    reduced = queue.get(timeout=300)
    for file, name, grads in zip(files, formats, reduced, strict=True):
        torch.manual_seed(0)
        module = file.apply_policy(Net())
        parts = [gradients(module, x) for x in PARTS[:ranks]]
        assert set(grads) == set(parts[0])
        low = {
            key: sum(
                (part[key].to(getattr(torch, name)) / ranks for part in parts), torch.zeros(())
            )
            for key in grads
        }
        for key, grad in grads.items():
            assert grad.dtype == np.float32
            same(torch.from_numpy(grad), low[key].to(getattr(torch, name)).float())
        assert any((sum(part[key] for part in parts) / ranks != low[key]).any() for key in grads)


STEPS, CLIP, RATE, SMALL = 10, 0.05, 0.3, 4
SCALED = replace(policy_of(), loss_scale=LossScale("dynamic", 2.0**24, growth_interval=3))


def _batches() -> list[list[tuple[Any, Any]]]:
    """Return, step by step, two batches that are accumulated."""
    rng = torch.Generator().manual_seed(2)
    x = torch.randn(STEPS, 2, 2 * SMALL, *X.shape[1:], generator=rng)
    y = torch.randn(STEPS, 2, 2 * SMALL, generator=rng)
    return [[*zip(*pair, strict=True)] for pair in zip(x, y, strict=True)]


def _loop(exported: Any, module: Any, ranks: Sequence[int]) -> tuple[list[float], list[float]]:
    """Train with clipping, accumulation and the moving scale; return losses and scales.

    Of more than one rank the gradients are the mean of theirs, each with the loss of its own half.
    """
    scaler, optimizer = exported.make_grad_scaler(), torch.optim.SGD(module.parameters(), RATE)
    losses, scales = [], []
    for step in _batches():
        scales.append(scaler.get_scale())
        total = 0.0
        for (x, y), rank in itertools.product(step, ranks):
            rows = slice(rank * SMALL, (rank + 1) * SMALL)
            loss = (module(x[rows]).mean(1) - y[rows]).square().mean()
            scaler.scale(loss / 2).backward()
            total += loss.item() / 2
        losses.append(total / len(ranks))
        for parameter in module.parameters() if len(ranks) > 1 else ():
            parameter.grad /= len(ranks)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses, scales


def _train_on(rank: int, folder: str, name: str, state: Any, queue: Any) -> None:
    sys.path.insert(0, folder)
    torch.set_num_threads(1)
    exported = importlib.import_module(name)
    store = torch.distributed.FileStore(f"{folder}/loops", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = {}
    for kind in ("ddp", "fsdp"):
        module = Net()
        module.load_state_dict(state)
        exported.apply_policy(module)
        wrapped = DistributedDataParallel(module) if kind == "ddp" else module
        if kind == "fsdp":
            _shard(module)
        found[kind] = _loop(exported, wrapped, [rank])
    gathered = [None, None]
    torch.distributed.all_gather_object(gathered, found)
    if rank == 0:
        queue.put(gathered)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_as_one(load: Any, tmp_path: Path) -> None:
    """Clipping, accumulation and a scale that overflows; halves of a batch are summed apart."""
    exported = load(SCALED)
    torch.manual_seed(0)
    module = Net()
    state = {name: x.clone() for name, x in module.state_dict().items()}
    losses, scales = _loop(exported, exported.apply_policy(module), [0, 1])
    assert len(set(scales)) > 2
    moved = Net()
    moved.load_state_dict({name: x * (1 + 1e-7) for name, x in state.items()})
    jitter = _loop(exported, exported.apply_policy(moved), [0, 1])[0]
    own = max(abs(a - b) for a, b in zip(losses, jitter, strict=True))
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    given = (str(tmp_path), exported.__name__, state, queue)
    processes = [context.Process(target=_train_on, args=(rank, *given)) for rank in range(2)]
    for process in processes:
        process.start()
    first, second = queue.get(timeout=300)
    for process in processes:
        process.join()
    for kind in ("ddp", "fsdp"):
        assert first[kind][1] == second[kind][1] == scales, kind
        means = [(a + b) / 2 for a, b in zip(first[kind][0], second[kind][0], strict=True)]
        apart = max(abs(a - b) for a, b in zip(means, losses, strict=True))
        print(kind, apart, own)
        assert apart <= 2 * own, (kind, apart, own)
