"""A real torch training that is recorded: what its log says of formats and of the loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import policysearch
from policysearch.cli import main
from policysearch.diagnose.log import Finding, findings, read_log
from policysearch.values import InputError

pytestmark = pytest.mark.torch

SCALE = 2.0**12


class Scaler:
    """A loss scale that stays, as GradScaler has it between its moves; on a CPU, without skips."""

    def get_scale(self) -> float:
        return SCALE


class Net(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.first(x) * self.factor / self.factor))


def trained(
    path: Path,
    factor: float = 1.0,
    rate: float = 0.1,
    clip: Callable[[list[Any]], None] = lambda params: None,
    late: bool = True,
    records: bool = True,
    size: float = 1.0,
) -> list[float]:
    """Train ten steps in float32 and return the losses; clip after unscaling, or before."""
    torch.manual_seed(0)
    net = Net(factor)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    x, y = torch.randn(64, 8), torch.randint(0, 4, (64,))
    params, losses = list(net.parameters()), []

    def steps() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y) * size
            (loss * SCALE).backward()
            if not late:
                clip(params)
            for p in params:
                assert p.grad is not None
                p.grad /= SCALE
            if late:
                clip(params)
            optimizer.step()
            losses.append(float(loss.detach()))

    if not records:
        steps()
        return losses
    with policysearch.record(net, optimizer, path, every=3, scaler=Scaler()):
        steps()
    return losses


def found(path: Path, format: str = "float16") -> list[Finding]:
    return findings(read_log(path), format)


def limited(params: list[Any]) -> None:
    torch.nn.utils.clip_grad_norm_(params, 0.01)


def test_recording_changes_nothing_and_keeps_every_third_step(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert trained(path) == trained(path, records=False)
    lines = read_log(path)
    assert [line.step for line in lines] == [0, 3, 6, 9]
    rows = {(row.direction, row.layer) for row in lines[0].exponents}
    assert {("fprop", "first"), ("dgrad", "first"), ("wgrad", "last"), ("update", "first")} <= rows


def test_exponents_are_those_of_numpy(tmp_path: Path) -> None:
    path = tmp_path / "log"
    trained(path, rate=0.0)
    (row,) = (
        row
        for row in read_log(path)[0].exponents
        if (row.direction, row.layer, row.op) == ("fprop", "last", "addmm")
    )
    torch.manual_seed(0)
    net = Net(1.0)
    x = torch.randn(64, 8)
    _, exponents = np.frexp(net(x).detach().numpy())
    assert sum(row.counts) == row.total and row.first == exponents.min()
    exact = np.bincount((exponents - row.first).ravel())
    assert np.all(np.abs(row.counts - exact) <= 0.1 * exact)
    assert [a for a, b in zip(row.counts, exact, strict=True) if b <= 8] == exact[
        exact <= 8
    ].tolist()


def test_an_op_that_would_overflow_is_named_with_its_direction(tmp_path: Path) -> None:
    path = tmp_path / "log"
    trained(path, factor=1e7)
    first = found(path)[0]
    assert (first.kind, first.direction, first.op, first.step) == ("overflow", "fprop", "mul", 0)
    assert not [f for f in found(path, "bfloat16") if f.kind == "overflow"]


def recorded(path: Path, loss_of: Callable[[Any], Any], scaler: Scaler | None = None) -> None:
    """Record a step of a linear layer whose loss is computed outside of it."""
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with policysearch.record(net, optimizer, path, every=1, scaler=scaler):
        loss = loss_of(net(torch.randn(64, 8)))
        (loss * SCALE if scaler else loss).backward()
        torch.rand(4) * 1e30  # nothing is seen from the backward pass to the next forward pass
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        optimizer.step()
        torch.rand(4) * 1e30


def test_a_loss_that_is_computed_behind_the_module_is_seen_and_its_scale_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    recorded(path, lambda y: ((100.0 * y) ** 2).sum())
    first = found(path)[0]
    assert (first.kind, first.direction, first.layer, first.op) == ("overflow", "fprop", "", "sum")
    ops = {row.op for row in read_log(path)[0].exponents if row.direction == "fprop"}
    assert ops - {"ones_like"} == {"addmm", "mul", "pow", "sum"}  # what `backward` begins with
    recorded(path, lambda y: 100.0 * y.square().mean(), Scaler())
    assert not [f for f in found(path) if f.direction == "fprop"]


def test_a_divisor_that_would_be_zero_is_named_and_one_that_would_not_is_not(
    tmp_path: Path,
) -> None:
    """Half of float16's smallest number is 2^-25."""
    path = tmp_path / "log"
    for size, lost in ((1e-9, True), (2.0**-20, False)):
        for wrong in (
            lambda p, size=size: torch.log(p.square() * 0.0 + size).mean() * 1e-3,
            lambda p, size=size: (1.0 / (p * 0.0 + size)).mean() * 0.0,
            lambda p, size=size: (p * size / (p * 0.0 + size)).mean(),
        ):
            recorded(path, wrong)
            born = [f for f in found(path) if f.kind == "born"]
            assert [f.op in ("log", "reciprocal", "div") for f in born] == [True] * lost
            assert not lost or ("divides by" in born[0].words and born[0].direction == "fprop")
            assert not [f for f in found(path, "bfloat16") if f.kind == "born"]


def test_of_two_overflows_the_first_is_named_first(tmp_path: Path) -> None:
    """Though an op called like the second has run before both."""
    path = tmp_path / "log"
    recorded(path, lambda y: (torch.exp(2.0 * y.clamp(20.0, 30.0) + 0.0 * y) * 4.0 + y).mean())
    assert [f.op for f in found(path) if f.kind == "overflow"][:2] == ["exp", "mul"]


def test_gradients_that_would_vanish_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    trained(path, size=1e-12)
    kinds = {(f.kind, f.direction) for f in found(path)}
    assert ("underflow", "wgrad") in kinds and "overflow" not in {kind for kind, _ in kinds}


def test_updates_that_bfloat16_would_swallow_are_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    trained(path, rate=1e-5)
    assert "swamped updates" in {f.kind for f in found(path, "bfloat16")}
    assert "swamped updates" not in {f.kind for f in found(path, "float32")}


def test_clipping_before_unscaling_is_found_and_clipping_after_it_is_not(tmp_path: Path) -> None:
    path, clipping = tmp_path / "log", torch.nn.utils.clip_grad_norm_
    trained(path, clip=limited, late=False)
    assert torch.nn.utils.clip_grad_norm_ is clipping  # as it was before
    first = found(path)[0]
    assert first.kind == "clip before unscale" and "clipped to 0.01" in first.words
    trained(path, clip=limited, late=True)
    assert "clip before unscale" not in {f.kind for f in found(path)}
    trained(path)
    assert "clip before unscale" not in {f.kind for f in found(path)}


class Trainer:
    """As Lightning trains: the clipping is a hook, called with the closure's gradients.

    Up to 1.4 it was called before the scaler had divided them (Lightning #9330).
    """

    def __init__(self, net: torch.nn.Module, early: bool) -> None:
        self.net, self.early = net, early
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        self.scaler = Scaler()

    def fit(self, batches: list[tuple[Any, Any]]) -> None:
        for batch in batches:
            self.closure(*batch)
            if self.early:
                self.configure_gradient_clipping()
            for parameter in self.net.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(1.0 / self.scaler.get_scale())
            if not self.early:
                self.configure_gradient_clipping()
            self.optimizer.step()

    def closure(self, x: Any, y: Any) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        (loss * self.scaler.get_scale()).backward()

    def configure_gradient_clipping(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)


@pytest.mark.parametrize("early", [True, False])
def test_clipping_before_unscaling_is_found_in_the_loop_of_a_trainer(
    early: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    trainer = Trainer(Net(1.0), early)
    batches = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(8)]
    with policysearch.record(
        trainer.net, trainer.optimizer, tmp_path / "log", every=2, scaler=trainer.scaler
    ):
        trainer.fit(batches)
    kinds = [finding.kind for finding in found(tmp_path / "log")]
    assert ("clip before unscale" in kinds[:1]) == early
    assert ("clip before unscale" in kinds) == early


@pytest.mark.parametrize("given", ["closure", "positional"])
def test_a_step_with_a_closure_is_recorded_as_one_without(given: str, tmp_path: Path) -> None:
    """Lightning gives its optimizers the whole step, the first without a gradient before it."""
    texts = []
    x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
    for how in ("alone", given):
        torch.manual_seed(0)
        trainer = Trainer(Net(1.0), early=True)

        def closure(trainer: Trainer = trainer) -> float:
            trainer.closure(x, y)
            trainer.configure_gradient_clipping()
            return 0.0

        path = tmp_path / how
        with policysearch.record(
            trainer.net, trainer.optimizer, path, every=2, scaler=trainer.scaler
        ):
            for _ in range(5):
                if how == "alone":
                    closure()
                    trainer.optimizer.step()
                elif how == "closure":
                    trainer.optimizer.step(closure=closure)
                else:
                    trainer.optimizer.step(closure)
        texts.append(path.read_text())
    assert texts[0] == texts[1] and len(read_log(path)) == 3


def test_the_command_reads_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    trained(path, factor=1e7)
    assert main(["diagnose", "--log", str(path)]) == 0
    assert "overflow in float16" in capsys.readouterr().out
    assert main(["diagnose", "--log", str(path), "--study", "x.toml"]) == 2
    assert main(["diagnose"]) == 2
    for text, said in (
        ("", "no recorded step; expected a log of `record`"),
        ("{}", "line 1: {}; expected a log of `record`"),
        ('{"step": 1, "exponents": [[1]]}', r"line 1.exponents\[0\]: \[1\]; expected \[direction"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=said):
            read_log(path)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"qkv": (32, 96), "proj": (32, 32), "up": (32, 128), "down": (128, 32)}
        for name, (read, given) in sizes.items():
            self.add_module(name, torch.nn.Linear(read, given))
        self.before, self.between = torch.nn.LayerNorm(32), torch.nn.LayerNorm(32)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        x = x + self.proj((q @ k.transpose(-2, -1) / 32**0.5).softmax(-1) @ v)
        return x + self.down(torch.nn.functional.gelu(self.up(self.between(x))))


def test_a_step_of_ten_blocks_of_a_transformer_is_a_line_of_5_kB(tmp_path: Path) -> None:
    """Where names are new they come on top, once."""
    path = tmp_path / "log"
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(Block() for _ in range(10)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(8, 24, 32)
    with policysearch.record(net, optimizer, path, every=1):
        for _ in range(3):
            ((net(x) - x.flip(1)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    sizes = [len(line) for line in path.read_text().splitlines()]
    assert max(sizes[1:]) < 5000 and sizes[0] < 8000
    rows = [
        {(row.direction, row.layer, row.op) for row in line.exponents} for line in read_log(path)
    ]
    assert len(rows[0]) > 400 and rows[0] == rows[1] == rows[2]


def test_torchs_clipping_is_given_back(tmp_path: Path) -> None:
    before = torch.nn.utils.clip_grad_norm_
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with policysearch.record(net, optimizer, tmp_path / "log"):
        assert torch.nn.utils.clip_grad_norm_ is not before
    assert torch.nn.utils.clip_grad_norm_ is before
    assert not net._forward_hooks and not net._forward_pre_hooks
