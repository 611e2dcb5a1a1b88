"""The attention that a task names: what trains, what is exported, what it costs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from policysearch.cli import main
from policysearch.cost.price import StepPrice, step_price
from policysearch.data.datasets import Dataset
from policysearch.export.torch import export, losses
from policysearch.graph import Graph
from policysearch.nn.model import DROPPED, Attention, Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.parallel import Parallel
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.study.first_study import NOT_FLASH
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.values import InputError
from policysearch.verify.verdict import verify
from tests.attention_nets import AVX512, CLASSES, LOSS, Called, Gpt, imported, tokens

pytestmark = pytest.mark.torch

LENGTH = 40
KERNELS: tuple[Attention, ...] = ("written", "math", "flash")


def task_of(kind: Attention, net: nn.Module | None = None) -> Task:
    numbers = np.random.default_rng(0).integers(0, CLASSES, (96, LENGTH))
    data = Dataset("tokens", (numbers,), np.roll(numbers, 1, 1), 64, 32, CLASSES)
    model = imported(net or Gpt(LENGTH, is_causal=True), tokens(LENGTH), "written")
    return Task(
        model=model, data=data, loss=LOSS, learning_rate=0.05, batch_size=16, attention=kind
    )


def built(kind: Attention) -> Model:
    task = task_of(kind)
    return task.build_model(task.load_dataset())


def stepped(model: Model, tensor: int = 1) -> tuple[Graph, StepPrice]:
    """Return a step of 16 examples, and its price on as many devices."""
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    policy = replace(policy, parallel=Parallel(devices=tensor, tensor=tensor))
    graph = apply_policy(trace_step(model, LOSS, Optimizer("sgd"), 16), policy)
    return graph, step_price(graph, "H100-SXM5", "torch.eager", policy)


@AVX512
@pytest.mark.parametrize(("kind", "name"), [("flash", "bfloat16"), ("math", "float16")])
def test_verify_trains_in_torch_with_the_kernel(kind: Attention, name: str) -> None:
    """Written out, the first losses are 7e-5 apart, and the call is named."""
    task = task_of(kind)
    policy = preset(f"torch.autocast.{name}", task.build_model(task.load_dataset()).layer_names)
    verdict = verify(policy, task, steps=3)
    assert verdict.faults == verdict.undecided == verdict.unlike == ()
    assert verdict.gaps[0] < 2e-6


NET = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = (y.unsqueeze(1) for y in self.qkv(x).chunk(3, -1))
        y = scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        return self.head(y.squeeze(1).mean(1))

def data():
    return torch.randn(64, 5, 8), torch.arange(64) % 3
"""


@pytest.mark.parametrize(
    "change", [("", ""), ("y.unsqueeze(1) for", "y for"), ("dropout_p=0.0", "dropout_p=0.1")]
)
def test_init_says_where_attention_is_no_flash_kernel(
    change: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = NET.replace(*change)
    text = text if "unsqueeze" in text else text.replace("y.squeeze(1)", "y")
    Path("net.py").write_text(text, encoding="utf-8")
    assert main(["init", "net.py", "--out", "other.toml"]) == 0
    said = capsys.readouterr().out
    assert "taken: net.py:Net and net.py:data" in said
    assert (NOT_FLASH in said) == (change[1] == "y for")
    written = Path("other.toml").read_text(encoding="utf-8")
    assert 'attention = "flash"' in written and 'name = "other"' in written


class OfTorch(nn.Module):
    """Torch's own module of attention, which calls it without weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        made: Tensor = self.head(self.attention(x, x, x, need_weights=False)[0])
        return made


NETS: dict[str, Callable[[], nn.Module]] = {
    "own": lambda: Gpt(LENGTH, is_causal=True),
    "of torch": OfTorch,
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("kind", KERNELS)
def test_the_exported_file_runs_the_kernel(kind: Attention, net: str, tmp_path: Path) -> None:
    task = task_of(kind, NETS[net]())
    model = task.build_model(task.load_dataset())
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    path = tmp_path / f"exported_{kind}.py"
    path.write_text(export(policy, model))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    exported: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    module = exported.apply_policy(NETS[net]())
    with Called() as called:
        module(tokens(LENGTH).inputs[0])
    assert called.flash == (kind != "math")  # left alone, torch takes it on a CPU
    assert any("float32 inside" in line for line in losses(policy, model)) == (kind == "written")


def test_what_flash_does_not_store_is_not_priced() -> None:
    (_, written), (_, composed), (graph, flash) = (stepped(built(kind)) for kind in KERNELS)
    scores = 16 * 4 * LENGTH * LENGTH
    assert all(np.prod(node.shape) != scores for node in graph.nodes)
    assert flash.time.kernel_seconds < written.time.kernel_seconds < composed.time.kernel_seconds
    assert flash.memory.peak_bytes < 0.7 * written.memory.peak_bytes


def test_a_mask_that_flash_draws_itself_takes_no_memory_and_no_time() -> None:
    def priced(**options: Any) -> StepPrice:
        task = task_of("flash", Gpt(LENGTH, is_causal=True, **options))
        graph, price = stepped(task.build_model(task.load_dataset()))
        assert any(DROPPED in node.attributes for node in graph.nodes) == bool(options)
        return price

    whole, dropping = priced(), priced(dropout_p=0.1)
    assert dropping.memory.peak_bytes == whole.memory.peak_bytes
    assert dropping.time.kernel_seconds == whole.time.kernel_seconds


@pytest.mark.parametrize("dropped", [0.0, 0.1])
def test_heads_of_flash_are_divided_among_devices_whole(dropped: float) -> None:
    task = task_of("flash", Gpt(LENGTH, is_causal=True, dropout_p=dropped))
    model = task.build_model(task.load_dataset())

    def flops(tensor: int) -> int:
        kernels = stepped(model, tensor)[1].time.kernels
        return sum(kernel.flops for kernel in kernels if kernel.op.startswith("flash"))

    assert flops(1) == 2 * flops(2) == 4 * flops(4)
    assert flops(8) == flops(1)  # of four heads: a device reads them all


def test_written_out_is_what_it_was() -> None:
    task = task_of("written")
    assert task.build_model(task.load_dataset()) is task.model
    assert "attention" not in task.to_plain()
    prints = {built(kind).fingerprint for kind in KERNELS}
    tasks = {task_of(kind).fingerprint for kind in KERNELS}
    assert len(prints) == len(tasks) == 3


def test_a_net_without_a_call_of_attention_is_refused() -> None:
    with pytest.raises(InputError, match=r"attention: 'flash' with model lenet5, which calls none"):
        task = Task(attention="flash")
        task.build_model(task.load_dataset())
    by_hand = nn.Sequential(nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES))
    task = task_of("math", by_hand)
    with pytest.raises(InputError, match=r"which calls none of torch's; expected 'written'$"):
        task.build_model(task.load_dataset())
    with pytest.raises(InputError, match=r"^attention: 'fast'; expected "):
        task_of("fast")  # type: ignore[arg-type]
