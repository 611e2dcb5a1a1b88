"""What a user's own net or file does wrong is said in one line, all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import policysearch
from policysearch import Dataset, InputError, Task
from policysearch.cli import main
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.step import trace_step
from tests.nets_of_torch import TIME, TOKENS, NanoGPT
from tests.studies import write_study

pytestmark = pytest.mark.torch

FIVE = """
import torch
from torch import nn

import policysearch


class Inner(nn.Module):
    def forward(self, x):
        return torch.i0(torch.erfinv(torch.tanh(x) * 0.5))


class Bessel(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Five(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.fc, self.act = Inner(), nn.Linear(64, 10), Bessel()

    def forward(self, x):
        best, _ = torch.mode(self.act(self.fc(self.inner(x.flatten(1)))), 1)
        return torch.special.i1(best)


def five():
    return policysearch.from_torch(Five, torch.zeros(2, 1, 8, 8))


def raises():
    raise KeyError("no\\nsuch thing")


def wrong():
    return 3


def sound():
    return policysearch.from_torch(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(2, 1, 8, 8)
    )


def few():
    return policysearch.from_torch(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 7)), torch.zeros(2, 1, 8, 8)
    )


def larger():
    return policysearch.from_torch(
        nn.Sequential(nn.Flatten(), nn.Linear(81, 10)), torch.zeros(2, 1, 9, 9)
    )
"""
UNSUPPORTED = (
    "inner: aten.erfinv",
    "inner: aten.i0",
    "act: aten.special_bessel_j0",
    "the module itself: aten.mode",
    "the module itself: aten.special_i1",
)


def run(folder: Path, model: str) -> int:
    (folder / "net.py").write_text(FIVE, encoding="utf-8")
    own = (
        ('model = "mlp"\n', f'model = "{model}"\nloss = "token_cross_entropy"\n'),
        ("widths = [8]\n", ""),
        ('ops = ["tanh"]\n', ""),
        ("trials = 6", "trials = 1"),
    )
    study = write_study(folder, *own)
    return main(["run", str(study), "--storage", "own.journal"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of the error stream."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_a_sound_function_of_a_file_is_trained(folder: Path) -> None:
    assert run(folder, "net.py:sound") == 0 and (folder / "own.journal").is_file()


def test_five_ops_without_a_rule_are_named_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "net.py:five") == 2
    line = said(capsys)
    for part in UNSUPPORTED:
        assert f"{part}: no rule for this op; write it with ops that have one" in line
    assert line.count("no rule") == len(UNSUPPORTED)
    assert not (folder / "own.journal").exists()


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("nothing.py:five", ["'nothing.py'", "no such file; expected a Python file"]),
        ("net.py:six", ["no function 'six'", "expected one of", "five"]),
        ("net.py:raises", ["net.py:raises", "KeyError", "no", "such thing", "expected it to run"]),
        ("net.py:wrong", ["net.py:wrong returned int; expected a torch.nn.Module, or a Model"]),
        ("net.py:few", ["labels: 9; expected 0 to 6"]),
        ("net.py:larger", ["inputs[0]: [count, 1, 8, 8]; expected [count, 1, 9, 9]"]),
    ],
)
def test_a_mistake_in_a_study_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], model: str, parts: list[str]
) -> None:
    assert run(folder, model) == 2
    line = said(capsys)
    assert all(part in line for part in parts), line


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x if x.sum() > 0 else -x


class BatchLast(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.t()


class ForFour(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.view(4, 5)


class Counting(nn.Module):
    """Reads whole numbers that it moves."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen += 1
        return self.fc(x) * self.seen


class Constant(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.ones(len(x), 3), x


def hooked(kind: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(5, 3))
    if kind == "module":
        net[0].register_full_backward_hook(lambda *_: None)
    else:
        net[0].weight.register_hook(lambda grad: 0.1 * grad)
    return net


X = torch.zeros(4, 5)
MOVED = r"buffer seen: whole numbers that forward itself moves; expected float32"


@pytest.mark.parametrize(
    ("module", "inputs", "options", "message"),
    [
        (Branching(), X, {}, r"data-dependent.*without branches on values"),
        (BatchLast(), X, {}, r"result: \[5, 'batch'\]; expected the batch along axis 0"),
        (ForFour(), X, {}, r"expected a forward that it takes, here with 2 examples"),
        (nn.Linear(6, 3), X, {}, r"torch.export: .*; expected a forward"),
        (nn.Linear(5, 3), (X, X[:2]), {}, r"example_inputs\[1\]: 2 examples; expected 4"),
        (nn.Linear(5, 3), X[:0], {}, r"example_inputs: no example; expected"),
        (nn.Linear(5, 3), 3, {}, r"example_inputs\[0\]: int; expected a tensor"),
        (nn.Linear(5, 3), X, {"loss": "own"}, r"no scalar result; expected its own loss"),
        (nn.Linear(5, 3), X, {"loss": "own", "labels": "y"}, r"labels: 'y'; expected one of input"),
        (Counting(), X, {}, MOVED),
        (
            nn.Embedding(5, 3, max_norm=1.0),
            X.long(),
            {},
            r"parameter weight: aten.embedding_renorm_ in forward moves it; expected only the opt",
        ),
        (Constant(), X, {}, r"results: first none of inputs and parameters; expected one"),
        (hooked("module"), X, {}, r"module 0: a backward hook; expected the gradients that torch"),
        (hooked("weight"), X, {}, r"parameter 0.weight: a hook on its gradient; expected the"),
        (nn.Linear(5, 3).half(), X.half(), {}, r"weight: torch.float16; expected torch.float32"),
        (nn.Linear(5, 3), X.bool(), {}, r"example_inputs\[0\]: torch.bool; expected int64 or"),
        (lambda: 3, X, {}, r"module: int; expected an nn.Module or its maker"),
    ],
)
def test_a_module_that_cannot_be_imported(
    module: Any, inputs: Any, options: Any, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        policysearch.from_torch(module, inputs, **options)
    assert "\n" not in str(caught.value)
    printed = capfd.readouterr()
    assert not printed.out and not printed.err


IDS = np.zeros((8, TIME), np.int64)
LABELS = np.zeros((8, TIME), np.int64)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (IDS.astype(np.float32), LABELS, r"inputs\[0\]: float32; expected int64 for idx"),
        (IDS + TOKENS, LABELS, r"inputs\[0\]: 11; expected 0 to 10 for idx"),
        (IDS - 1, LABELS, r"inputs\[0\]: -1; expected 0 to 10 for idx"),
        (IDS[:, :-1], LABELS, r"inputs\[0\]: \[count, 5\]; expected \[count, 6\]"),
        ((IDS, IDS), LABELS, r"2 inputs; model NanoGPT expected 1: idx"),
        (IDS, LABELS + TOKENS, r"labels: 11; expected 0 to 10"),
        (IDS, LABELS[:, 0], r"labels: \[\] per example; expected \[6\]"),
    ],
)
def test_a_data_set_that_does_not_fit(inputs: Any, labels: Any, message: str) -> None:
    model = policysearch.from_torch(NanoGPT(), torch.from_numpy(IDS[:2].copy()))
    given = tuple(x.copy() for x in inputs) if isinstance(inputs, tuple) else inputs.copy()
    dataset = Dataset("own", given, labels.copy(), 4, 4, 20)
    with pytest.raises(InputError, match=message):
        Task(model=model, data=dataset).build_model(dataset)


def test_a_data_set_that_fits_is_taken_with_ignored_labels() -> None:
    model = policysearch.from_torch(NanoGPT(), torch.from_numpy(IDS[:2].copy()))
    labels = LABELS.copy()
    labels[:, 1] = -100
    dataset = Dataset("own", (IDS.copy(),), labels, 4, 4, 20)
    assert Task(model=model, data=dataset).build_model(dataset) is model


def test_every_rule_is_a_function_and_every_maker_is_called_anew() -> None:
    made: Callable[[], Any] = lambda: nn.Linear(5, 3)  # noqa: E731
    model = policysearch.from_torch(made, X)
    first, second = (model.init(np.random.default_rng(seed)) for seed in (0, 1))
    again = model.init(np.random.default_rng(0))
    assert first.keys() == {"weight", "bias"}
    assert (first["weight"] != second["weight"]).any()
    np.testing.assert_array_equal(first["weight"], again["weight"])


def test_a_loss_of_no_parameter_is_not_trained() -> None:
    class Held(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x).detach()

    model = policysearch.from_torch(Held(4, 3), torch.zeros(2, 4))
    with pytest.raises(InputError, match="model: its loss depends on no parameter; expected one"):
        trace_step(model, "token_cross_entropy", Optimizer("sgd"), 2)


def test_a_dataclass_is_a_result() -> None:
    @dataclass
    class Result:
        logits: Any
        hidden: Any
        loss: Any = None

    class Returning(nn.Linear):
        def forward(self, x: Any) -> Any:
            return Result(super().forward(x), x)

    net = Returning(4, 3)
    model: Any = policysearch.from_torch(net, torch.zeros(2, 4))
    assert [call.op for call in model.program.calls] == ["aten.linear"]
    assert not net._forward_hooks


def test_a_refusal_names_the_line_of_the_users_file(tmp_path: Path) -> None:
    place = tmp_path / "net.py"
    place.write_text(FIVE)
    lines = FIVE.splitlines()
    space: dict[str, Any] = {}
    exec(compile(FIVE, str(place), "exec"), space)
    with pytest.raises(InputError) as refusal:
        policysearch.from_torch(space["Five"](), torch.zeros(2, 1, 8, 8))
    line = lines.index(next(x for x in lines if "erfinv" in x)) + 1
    assert f"aten.erfinv: no rule for this op; write it with ops that have one (net.py:{line})" in (
        str(refusal.value)
    )
