"""Training steps and kernels of torch: do they do what is priced?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.validation import measured_policies
from benchmarks.validation.__main__ import validation
from benchmarks.validation.agreement import agreement
from benchmarks.validation.measured import EVEN, ODD, _Trial, accuracy, measured_report
from benchmarks.validation.measured_policies import Subject, low_layers, policy_of, product_layers
from benchmarks.validation.pages.measured_page import measured_page
from policysearch.cost.device_file import device_text, read_device, timed_device
from policysearch.cost.devices import DEVICES
from policysearch.cost.measured import calls_of
from policysearch.cost.stacks import stack_named
from policysearch.cost.timings import Work
from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import Graph, Node
from policysearch.nn.models import mlp, transformer
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.policy.presets import preset
from policysearch.train.feeding import feed_constants
from policysearch.values import InputError
from policysearch.verify.calibrate import SIZES, Bench, generic_works, machine_of
from policysearch.verify.clock import Clock, one_thread
from policysearch.verify.torch_kernels import KERNELS, kernel
from policysearch.verify.torch_step import Net, net

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
EAGER = stack_named("torch.eager")
MODELS = {
    "mlp": (mlp((12, 32, 24, 16, 5)), "momentum"),
    "transformer": (transformer((4, 6), 5, 16, (32,)), "adamw"),
}


def made(name: str, seed: int = 0) -> Net:
    model, optimizer = MODELS[name]
    return net(model, optimizer, 8, np.random.default_rng(seed), CPU)


def graphs(one: Net, count: int = 8) -> Iterator[Graph]:
    layers = product_layers(one.graph)
    for low in (frozenset[str](), *low_layers(layers, count, np.random.default_rng(1))):
        yield one.policy_graph(policy_of(low, layers, one.model))


class Seen(TorchDispatchMode):
    """Counts products by format, and casts by both formats, as they are dispatched."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("addmm", "mm", "bmm"):
            self.found[f"product {str(out.dtype)[6:]}"] += 1
        elif name == "_to_copy":
            self.found[f"cast {str(args[0].dtype)[6:]}>{str(out.dtype)[6:]}"] += 1
        return out


def priced(graph: Graph) -> Counter[str]:
    works = [task.work for task in calls_of(graph, DEVICES["H100-SXM5"], EAGER)]
    products = [w for w in works if w.op.startswith(("linear", "matmul"))]
    casts = [w for w in works if w.op == "cast"]
    return Counter(
        [*(f"product {w.format}" for w in products), *(f"cast {w.format}" for w in casts)]
    )


def forward_readers(graph: Graph) -> list[list[Node]]:
    return [[n for n in readers if n.role == "fprop"] for readers in graph.readers()]


@pytest.mark.parametrize("name", MODELS)
def test_torch_runs_the_products_and_casts_that_are_priced(name: str) -> None:
    one = made(name)
    kinds = set()
    for graph in graphs(one):
        step = one.step(graph)
        with Seen() as seen:
            step()
        found, expected = seen.found, priced(graph)
        assert {k: n for k, n in found.items() if "product" in k} == {
            k: n for k, n in expected.items() if "product" in k
        }
        # the graph casts every gradient of a cast that several ops read, torch casts their sum
        shared = sum(
            len(readers) - 1
            for node, readers in zip(graph.nodes, forward_readers(graph), strict=True)
            if node.op.name == "cast" and node.role == "fprop" and len(readers) > 1
        )
        casts = [(found[k], expected[k]) for k in found | expected if "cast" in k]
        assert all(seen_ <= priced_ for seen_, priced_ in casts)
        assert sum(priced_ - seen_ for seen_, priced_ in casts) == shared
        kinds |= set(seen.found)
    assert kinds >= {"product float32", "product bfloat16", "cast float32>bfloat16"}


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_the_emulator_and_train(name: str) -> None:
    for i, graph in enumerate(graphs(made(name), 4)):
        one = made(name)
        before = {key: value.detach().numpy().copy() for key, value in one.parameters.items()}
        emulated = step_of(graph, one)
        emulated.forward_backward()
        expected = float(emulated.value("loss"))
        step = one.step(graph)
        first = float(step())
        assert all(value.grad is None for value in one.parameters.values())
        assert first == pytest.approx(expected, rel=1e-5 if i == 0 else 5e-3)
        if name == "mlp":  # an update of Adam's first step is the sign of the gradient alone
            emulated.apply_updates()
            for key, old in before.items():
                moved = one.parameters[key].detach().numpy() - old
                wanted = emulated.arrays[key] - old
                assert np.abs(moved - wanted).max() <= 0.03 * np.abs(wanted).max() + 1e-7, key
        assert [float(step()) for _ in range(30)][-1] < first


def step_of(graph: Graph, one: Net) -> Step:
    """The same step in the emulator, with the parameters, the batch and the rate of torch's."""
    step = compile_graph(graph)
    for name, value in {**one.parameters, **one.fed}.items():
        given = value.detach().numpy()
        if name == TARGETS:
            given = np.eye(graph.output("logits").shape[-1], dtype=np.float32)[given]
        step.arrays[name][...] = given
    feed_constants(step, one.model)
    step.arrays[LEARNING_RATE][...] = one.optimizer.param_groups[0]["lr"]
    for one_each in (STEP_NUMBER, LOSS_SCALE, INVERSE_SCALE):
        if one_each in step.arrays:
            step.arrays[one_each][...] = 1
    return step


def test_what_torch_does_not_run_here_is_named() -> None:
    one = made("mlp")
    names = one.model.layer_names
    with pytest.raises(InputError, match=r"fc1\.weight in float16: not timed"):
        one.step(one.policy_graph(preset("apex.O3", names)))


@pytest.mark.parametrize("op", KERNELS)
@pytest.mark.parametrize("format", ["float32", "bfloat16", "float32>bfloat16"])
def test_every_kernel_runs_at_the_extents_it_is_asked_for(op: str, format: str) -> None:
    if (">" in format) != (op == "cast"):
        return
    extents = (2, 4, 6, 8) if KERNELS[op].__name__ in ("_product", "_transpose") else (4, 6)
    extents = (1, *extents[1:]) if op == "linear" else extents
    name = "transpose.0213" if op == "transpose" else op
    call = kernel(Work(name, format, extents), CPU)
    assert call is not None
    out = call()
    if op.startswith("matmul"):
        assert tuple(out.shape) == (2, 4, 6)  # type: ignore[attr-defined]
    if op == "cast":
        assert out.dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert kernel(Work("sinh", "float32", (4, 6)), CPU) is None


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_of_the_measured_nets_is_timed(name: str) -> None:
    for graph in graphs(made(name), 4):
        for task in calls_of(graph, DEVICES["H100-SXM5"], EAGER):
            assert kernel(task.work, CPU) is not None, task.work


def small_device(rng: np.random.Generator) -> Any:
    clock = Clock(CPU)
    works = [w for w in generic_works(("float32", "bfloat16"), "cpu") if max(w.extents) <= 64]
    bench = Bench(works, clock, rng)
    with one_thread():
        bench.round()
    assert len(bench.timings().rows) == len(works) > 50
    return timed_device("cpu", bench.timings(), machine_of(CPU), "measured")


def test_a_report_has_every_policy_measured_and_priced_and_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"tiny": Subject(lambda: mlp((8, 8, 8, 4)), "momentum", 4, small=True)}
    monkeypatch.setattr("benchmarks.validation.measured.SUBJECTS", {"cpu": tiny})
    device = small_device(np.random.default_rng(0))
    results = measured_report(device, CPU, 2, np.random.default_rng(0), names=["tiny"], policies=7)
    (one,) = results
    assert len(one.speedups) == len(one.own) == len(one.generic) == len(one.shares) == 7
    assert all(0 < x < 100 for x in (*one.speedups, *one.own, *one.generic))
    assert len(set(one.own)) > 1 and max(one.shares) == 1.0
    errors = [abs(a / b - 1) for a, b in zip(one.generic, one.speedups, strict=True)]
    found = accuracy(results)
    assert found.mean_error == pytest.approx(np.mean(errors)) and found.policies == 7
    page = measured_page(results)
    assert page.splitlines()[-1].startswith(f"mean error {found.mean_error:.1%}")
    assert page.count("at least 80%") == 2
    path = tmp_path / "mine.toml"
    path.write_text(device_text(replace(device, accuracy=found)), encoding="utf-8")
    assert read_device(path).accuracy == found
    capsys.readouterr()
    assert validation(["--measured", "--rounds", "1"]) == 2
    assert "--rounds: 1; expected a number from 2" in capsys.readouterr().err
    assert validation(["--measured", "--place", "tpu"]) == 2
    assert "--place: 'tpu'; expected one of cpu, cuda" in capsys.readouterr().err


def test_speedups_are_float32_over_the_policy_measured_and_priced() -> None:
    tiny = Subject(lambda: mlp((8, 8, 8, 4)), "momentum", 4, small=True)
    device, rng = small_device(np.random.default_rng(0)), np.random.default_rng(0)
    trial = _Trial("tiny", tiny, device, Clock(CPU), rng, policies=2)
    trial.taken = [[4.0, 8.0], [2.0, 2.0], [8.0, 16.0]]
    assert trial.measured(slice(None)) == (2.5, 0.5)
    assert trial.measured(EVEN) == (2.0, 0.5) and trial.measured(ODD) == (4.0, 0.5)
    slow_host = replace(device, host="adds", host_seconds=1.0)
    kernels = [len(calls_of(graph, device, EAGER)) for graph in trial.graphs]
    priced_ = trial.priced(slow_host, device.timings)
    assert priced_ == pytest.approx([kernels[0] / count for count in kernels[1:]], rel=1e-2)


def test_the_policies_are_different_and_hold_every_kind() -> None:
    layers = tuple(f"fc{i}" for i in range(8))
    lows = low_layers(layers, 46, np.random.default_rng(0))
    assert len(set(lows)) == 46 and frozenset(layers) in lows
    for layer in layers:
        assert {frozenset([layer]), frozenset(layers) - {layer}} <= set(lows)
    halves = [frozenset(layers[::2]), frozenset(layers[1::2]), frozenset(layers[:4])]
    assert set(halves) <= set(lows)
    subjects = measured_policies.SUBJECTS
    assert list(subjects["cpu"]) == list(subjects["cuda"]) and list(subjects) == list(SIZES)
    for subject in subjects["cpu"].values():
        assert 2 ** len(product_layers(net_graph(subject))) - 1 >= 46


def net_graph(subject: Subject) -> Graph:
    rng = np.random.default_rng(0)
    return net(subject.build(), subject.optimizer, 1, rng, CPU).graph


def test_agreement_counts_what_is_said_of_it() -> None:
    measured = [0.5, 0.8, 1.2, 2.0, 0.97]
    modeled = [0.6, 1.04, 0.9, 2.0, 0.97]
    halves = ([0.5, 0.8, 1.2, 2.1, 1.0], [0.5, 0.8, 1.2, 2.0, 0.9])
    a = agreement(modeled, measured, halves, [0.5, 0.5, 0.5, 1.0, 0.25])
    assert a.mean_error == pytest.approx((0.2 + 0.3 + 0.25) / 5)
    assert a.p90_error == pytest.approx(np.quantile([0.2, 0.3, 0.25, 0, 0], 0.9))
    assert a.retest_error == pytest.approx((0.05 + 1 / 9) / 5)
    assert (a.slower, a.found, a.called, a.faster, a.false) == (2, 1, 3, 1, 1)
    near = agreement([0.9, 1.2], [1.02, 0.97], ([1.0, 1.0], [1.1, 1.0]), [0.5, 0.5])
    assert (near.slower, near.called, near.faster, near.false) == (0, 1, 1, 0)
    assert a.rank == pytest.approx(0.6) and a.rank_within == pytest.approx(0.5)
