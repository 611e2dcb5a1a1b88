"""`policysearch init`: from a file with a net and data to a study that runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import policysearch
from policysearch.cli import main
from policysearch.policy.presets import preset
from policysearch.study.first_study import ALL_ROWS
from policysearch.study.specification import load_spec
from policysearch.train import user_code
from policysearch.train.feeding import batch_order
from policysearch.train.training import train
from policysearch.train.user_code import own_dataset
from policysearch.values import InputError

pytestmark = pytest.mark.torch

NET = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

def data():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, x[:, :3].argmax(1)
"""
REGRESSION = NET.replace("x[:, :3].argmax(1)", "x[:, :3].numpy()")
DEEP = NET.replace(
    "super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))",
    "super().__init__(*(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)) for _ in range(9)), "
    "nn.Linear(6, 3))",
)
PICTURES = """
import torch

def model():
    return torch.nn.Conv1d(1, 3, 1)

def data():
    x = torch.randn(50, 1, 4, 3, generator=torch.Generator().manual_seed(0))[..., 0]
    return x, torch.bucketize(x[:, 0].contiguous(), torch.tensor([-0.5, 0.5]))
"""

NANO = """
import torch
from torch import nn
from torch.nn import functional as F

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)

    def forward(self, idx, targets=None):
        x = torch.tanh(self.embed(idx))
        if targets is None:
            return self.head(x[:, [-1], :]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, 12), targets.view(-1), ignore_index=-1)

def data():
    x = torch.randint(0, 12, (60, 7), generator=torch.Generator().manual_seed(0))
    return x[:, :-1], x[:, 1:]
"""

DENOISER = """
import torch
from torch import nn
from torch.nn import functional as F

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.step = nn.Embedding(10, 8)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, noisy, step, noise, scale=1.0):
        return scale * F.mse_loss(self.net(noisy + self.step(step)), noise)

def data():
    draw = torch.Generator().manual_seed(0)
    x, noise = torch.randn(60, 8, generator=draw), torch.randn(60, 8, generator=draw)
    return {"noisy": x + noise, "step": torch.randint(0, 10, (60,), generator=draw), "noise": noise}
"""
BESIDE = """
import torch
from torch.nn import functional as F

class Set(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(50, 5, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.x[i, :, 0].argmax()}

class Attends(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = torch.nn.Linear(4, 4), torch.nn.Linear(4, 5)

    def forward(self, x):
        q = self.q(x)[:, None]
        return self.out(F.scaled_dot_product_attention(q, q, q)[:, 0].mean(1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_process: None) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    user_code._module.cache_clear()
    yield tmp_path
    user_code._module.cache_clear()


def write(text: str, name: str = "net.py") -> None:
    Path(name).write_text(text, encoding="utf-8")


def test_a_file_with_a_module_and_arrays_is_two_commands_from_a_front(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(NET)
    assert main(["init", "net.py", "--steps", "12", "--device", "V100-SXM2"]) == 0
    said = capsys.readouterr().out
    assert "3 layers" not in said and "2 layers; 40 to train on and 10 to validate" in said
    assert "\nat batch 64 launches, not arithmetic, set the modeled time" in said
    assert "assumed batch: 64 (--batch)" in said and "assumed device" not in said
    assert "\nsteps = 12                     # given\n" in Path("net.toml").read_text()
    assert main(["init", "net.py", "--out", "other.toml", "--batch", "65536"]) == 0
    said = capsys.readouterr().out
    assert "\nfloat8_e4m3fn is not searched, for no layer runs in it: " in said
    assert "launches" not in said
    assert "\nsteps = 300                     # assumed: enough" in Path("other.toml").read_text()
    assert main(["run", "net.toml", "--trials", "2", "--processes", "1", "--no-confirm"]) == 0
    trained = policysearch.load_results(load_spec(Path("net.toml")))
    assert len(trained.trials) == 2
    assert trained.spec.study.baseline == "torch.autocast.float16"  # a V100 has no bfloat16
    assert [trial.policy.name for trial in trained.trials] == ["float32", "torch.autocast.float16"]


def test_a_study_runs_from_any_folder_and_its_journal_is_the_same_study(folder: Path) -> None:
    write(NET)
    assert main(["init", "net.py", "--steps", "8"]) == 0
    options = ["--trials", "1", "--processes", "1", "--no-confirm", "--storage"]
    journal = str(folder / "own.journal")
    assert main(["run", "net.toml", *options, journal]) == 0
    (folder / "elsewhere").mkdir()
    os.chdir(folder / "elsewhere")
    user_code._module.cache_clear()
    assert main(["show", "../net.toml", "--storage", journal]) == 0
    assert main(["run", "../net.toml", "--trials", "2", *options[2:], journal]) == 0


def test_values_to_be_met_are_learned_by_the_mean_square_error(folder: Path) -> None:
    write(REGRESSION)
    assert main(["init", "net.py", "--steps", "12"]) == 0
    task = load_spec(Path("net.toml")).task
    assert task.build_model(task.load_dataset()).loss == "mean_squared_error"


def test_pictures_with_a_class_for_each_place_have_classes_along_axis_1(folder: Path) -> None:
    write(PICTURES)
    assert main(["init", "net.py", "--steps", "12"]) == 0
    task = load_spec(Path("net.toml")).task
    assert task.build_model(task.load_dataset()).loss == "cross_entropy"
    # Of as many places as classes both fit: the last axis is that of sequences.
    write(PICTURES.replace("4, 3, generator", "3, 3, generator"), "square.py")
    assert main(["init", "square.py", "--steps", "12"]) == 0
    task = load_spec(Path("square.toml")).task
    assert task.build_model(task.load_dataset()).loss == "token_cross_entropy"


def first_step(study: Path, net: str, labels: str) -> tuple[float, Any]:
    """Return the first loss of a study of `net` in net.py, and what that gives for the batch."""
    task = load_spec(study).task
    data = task.load_dataset()
    model = task.build_model(data)
    assert (model.loss, model.labels) == ("own", labels)
    float32 = preset("float32", model.layer_names)
    losses = train(task, float32, 0, dataset=data, model=model, until=1).losses
    first = batch_order(task, data, 0)[0]
    batch = (torch.from_numpy(array[first]) for array in (*data.train[0], data.train[1]))
    module: Any = user_code.function_of("model", "net.py", net)()
    return losses[0], module(*batch)


def test_a_net_that_takes_its_targets_is_trained_on_the_loss_that_it_returns(folder: Path) -> None:
    write(NANO)
    assert main(["init", "net.py:GPT"]) == 0
    loss, result = first_step(folder / "net.toml", "GPT", "targets")
    assert loss == pytest.approx(result[1].item(), rel=1e-6)


def test_what_a_net_needs_besides_its_inputs_is_what_it_learns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(DENOISER)
    assert main(["init", "net.py:Denoiser"]) == 0
    loss, result = first_step(folder / "net.toml", "Denoiser", "noise")
    assert loss == pytest.approx(result.item(), rel=1e-6)
    write(DENOISER.replace("scale=1.0", "scale"), "two.py")
    capsys.readouterr()
    assert main(["init", "two.py:Denoiser"]) == 2
    assert "missing a required argument: 'noise'" in capsys.readouterr().err


def test_a_study_for_mindspore_is_searched_and_exported_for_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(NET)
    stack = ["--stack", "mindspore.graph", "--device", "Ascend-910B2"]
    assert main(["init", "net.py", "--steps", "60", *stack]) == 0
    spec = load_spec(Path("net.toml"))
    assert (spec.study.target, spec.study.baseline) == ("mindspore", "mindspore.O2")
    assert spec.space.ladder == ("uniform", "mindspore.O1", "mindspore.O3")
    assert "assumed baseline: mindspore.O2" in capsys.readouterr().out
    given = ["export", "preset:mindspore.O2", "--study", "net.toml", "--out"]
    assert main([*given, "own"]) == 0 and main([*given, "torch", "--target", "torch"]) == 0
    assert (folder / "own/net-mindspore.py").exists() and not (folder / "own/net-torch.py").exists()
    assert (folder / "torch/net-torch.py").exists()
    policy = preset("mindspore.O2", spec.task.build_model(spec.task.load_dataset()).layer_names)
    assert folder / "api/net-mindspore.py" in policysearch.export_policy(
        policy, spec, folder / "api"
    )


def test_what_lies_beside_the_file_is_imported_from_any_folder(folder: Path) -> None:
    """A repository's train.py imports its own modules; its data may be one of torch's sets."""
    package = folder / "repository"
    package.mkdir()
    write(BESIDE, "repository/parts_beside.py")
    write("from parts_beside import Attends, Set", "repository/train.py")
    command = [sys.executable, "-P", "-m", "policysearch"]
    begun = ["init", "repository/train.py:Attends", "--data", "Set", "--steps", "4"]
    for asked in (begun, ["estimate", "repository/train.toml"]):
        done = subprocess.run([*command, *asked], cwd=folder, capture_output=True, text=True)
        assert not done.returncode, done.stderr
    assert 'attention = "flash"' in (package / "train.toml").read_text()


def test_many_layers_are_decided_by_block(folder: Path) -> None:
    write(DEEP)
    assert main(["init", "net.py", "--batch", "512"]) == 0
    spec = load_spec(Path("net.toml"))
    assert spec.space.granularity == "block"
    assert spec.cost.batch_size == 512 and spec.task.batch_size == 40


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (NET, ["nothing.py"], "model: 'nothing.py': no such file; expected a Python file"),
        (NET, ["net.py:other"], "model: net.py: no function 'other'; expected net.py:NAME, one"),
        (NET, ["net.py", "--data", "no"], "data: net.py: no function 'no'; expected --data NAME"),
        (NET, ["net.py", "--batch", "0"], "--batch: 0; expected a number of examples"),
        (NET, ["net.py", "--device", "H1000"], "device: 'H1000'; expected one that"),
        (
            NET,
            ["net.py", "--baseline", "fp16"],
            "--baseline: 'fp16'; did you mean 'float16'? expected",
        ),
        (NET, ["net.toml"], "expected a Python file"),
        (NET, [], "init: no net; expected NET.py[:model], or --example"),
        (NET.replace("data():", "numbers():"), ["net.py"], "data: net.py: no function called"),
        (NET.replace("argmax(1)", "sum(1).tolist()"), ["net.py"], "labels: [] per example"),
        (NET.replace("return x,", "return 3 #"), ["net.py"], "returned int; expected"),
        (
            NET.replace("return x,", "return x[1:],"),
            ["net.py"],
            "49, 50 examples; expected as many",
        ),
        (NET.replace("nn.Linear(6, 16)", "nn.Linear(7, 16)"), ["net.py"], "torch.export"),
        (NET.replace("nn.Linear(16, 3)", "nn.Linear(16, 2)"), ["net.py"], "labels: 2"),
        (NET + "raise OSError('full')", ["net.py"], "OSError: full; expected it to run"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    folder: Path, text: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(text)
    assert main(["init", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and "Traceback" not in error
    assert not Path("net.toml").exists()


def test_what_is_there_is_not_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(NET)
    write("mine", "net.toml")
    assert main(["init", "net.py"]) == 2
    assert Path("net.toml").read_text(encoding="utf-8") == "mine"
    assert "net.toml: exists; expected a new file" in capsys.readouterr().err
    assert main(["init", "--example"]) == 0
    assert main(["init", "--example"]) == 2


def test_the_example_is_the_shipped_study_and_runs(folder: Path) -> None:
    assert main(["init", "--example", "--out", "mine"]) == 0
    shipped = load_spec(Path("studies:own-net"))
    assert (
        Path("mine/own-net.toml").read_bytes()
        == (Path(__file__).parents[1] / "studies" / "own-net.toml").read_bytes()
    )
    os.chdir("mine")
    assert load_spec(Path("own-net.toml")).task.fingerprint == shipped.task.fingerprint
    command = [sys.executable, "-m", "policysearch", "estimate", "own-net.toml"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr


def test_arrays_are_split_alike_every_time_and_validate_other_rows(folder: Path) -> None:
    write(NET)
    first, second = (own_dataset("net.py:data") for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert (first.train_count, first.validation_count, first.classes) == (40, 10, 3)
    rows = np.unique(first.inputs[0], axis=0)
    assert len(rows) == 50 and first.inputs[0].dtype == np.float32


def test_a_shipped_study_that_is_none_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"^studies:lenet: no such study; expected .*lenet5-digits"
    ):
        load_spec(Path("studies:lenet"))


EXPERTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList(nn.Linear(6, 3) for _ in range(2))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        y = torch.zeros(len(x), 3)
        for i, expert in enumerate(self.experts):
            rows = torch.where(chosen == i)[0]
            y[rows] = expert(x[rows])
        return y

def data():
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)
"""


@pytest.mark.parametrize("text", [EXPERTS, NET], ids=["experts", "dense"])
def test_init_says_that_experts_are_priced_on_all_rows(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(text, encoding="utf-8")
    assert main(["init", "net.py"]) == 0
    assert (ALL_ROWS in capsys.readouterr().out) == (text is EXPERTS)
