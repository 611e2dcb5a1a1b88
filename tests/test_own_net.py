"""docs/own-net.md: its code runs as it stands; and the page of ops that have a rule."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.importers.rules import RULES, supported_ops_page
from policysearch.policy.policy import from_json
from policysearch.policy.presets import preset
from policysearch.train import user_code
from tests.studies import write_study

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "own-net.md").read_text(encoding="utf-8")
LONGEST_LINES = 15


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_own_study(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write a tiny study under the name the page gives."""
    (folder / "studies").mkdir()
    return write_study(folder / "studies", *changes, name="mlp-digits.toml")


def test_the_page_of_supported_ops_is_made_from_the_rules() -> None:
    page = (ROOT / "docs" / "supported-ops.md").read_text(encoding="utf-8")
    assert page == supported_ops_page() + "\n"
    assert set(re.findall(r"`(\w+)`", page.partition("|---|---|")[2])) == set(RULES)


@pytest.mark.torch
def test_from_torch_to_an_exported_policy_in_fifteen_lines(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    code = blocks("python")[1]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= LONGEST_LINES
    write_own_study(folder)
    space: dict[str, object] = {"__name__": "__main__"}
    calm = code.replace('"results/own.journal")', '"results/own.journal", processes=0)')
    calm = calm.replace("max_gap=0.01", "max_gap=9.0")
    assert calm.count("processes=0") == calm.count("max_gap=9.0") == 1
    exec(compile(calm, "net", "exec"), space)
    policy = from_json((folder / "results" / "tiny-policy.json").read_text())
    assert [name for name, _ in policy.layers] == ["0", "1", "2"]
    applied: dict[str, object] = {}
    text = (folder / "results" / "tiny-torch.py").read_text()
    exec(compile(text, "policy", "exec"), applied)
    module = space["net"]()  # type: ignore[operator]
    applied["apply_policy"](module)  # type: ignore[operator]
    assert torch.isfinite(module(torch.zeros(4, 8))).all()


@pytest.mark.torch
def test_the_four_commands_of_the_page_end_in_an_exported_policy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (folder / "net.py").write_text(blocks("python")[0])
    commands = re.findall(r"^\.venv/bin/policysearch (.*)$", blocks("sh")[1], re.M)
    assert [line.split()[0] for line in commands] == ["init", "estimate", "run", "export"]
    less = {"run": ["--trials", "2", "--no-confirm"]}  # what has not learned is not exported
    for line in commands:
        words = line.split()
        assert main([*words, *less.get(words[0], [])]) == 0
    assert main(["explain", "preset:bfloat16", "--study", "net.toml"]) == 0
    printed = capsys.readouterr().out
    assert "0.weight" in printed and "step 7:" in printed and "loss gap" in printed
    assert (folder / "results" / "net-torch.py").exists()


@pytest.mark.torch
@pytest.mark.parametrize("logits_too", [True, False])
def test_a_module_with_its_own_loss_is_trained_and_validated(logits_too: bool) -> None:
    torch = pytest.importorskip("torch")
    import policysearch as ps
    from policysearch.train.training import train

    class Own(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 4)
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, y: object, x: object) -> object:
            logits = self.fc(x) * self.scale
            loss = torch.nn.functional.cross_entropy(logits, y)
            return (loss, logits) if logits_too else loss

    torch.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((96, 6)).astype(np.float32)
    data = ps.Dataset("own", (x,), x[:, :4].argmax(1), 64, 32, 4)
    example = torch.zeros(2, dtype=torch.long), torch.zeros(2, 6)
    model = ps.from_torch(Own(), example, loss="own", labels="y")
    task = ps.Task(model=model, data=data, steps=60, tail_steps=5, batch_size=16, learning_rate=0.5)
    run = train(task, preset("bfloat16", model.layer_names), 0, dataset=data)
    assert run.losses[-5:].mean() < 0.6 * run.losses[0]
    assert (run.validation_accuracy is not None) is logits_too
    assert (run.validation_accuracy or 1.0) > 0.7


@pytest.mark.torch
def test_a_module_with_its_own_loss_takes_the_labels_as_an_argument(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    import policysearch as ps
    from tests.imported_steps import assert_close, emulated_step

    class Own(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 4)

        def forward(self, x: object, y: object) -> object:
            logits = self.fc(x)
            return torch.nn.functional.cross_entropy(logits, y, label_smoothing=0.1), logits

    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 6)).astype(np.float32)
    y = np.array([0, 3, -100, 1, 2])
    module = Own()
    given = torch.from_numpy(x), torch.from_numpy(y)
    model = ps.from_torch(module, given, loss="own", labels="y")
    step = emulated_step(model, (x,), y)
    loss, logits = module(*given)
    loss.backward()
    assert_close(step.value("loss"), loss.detach().numpy(), 1e-6, "loss")
    assert_close(step.value("logits"), logits.detach().numpy(), 1e-6, "logits")
    assert_close(step.value("grad:fc.weight"), module.fc.weight.grad.numpy(), 1e-5, "gradient")


NOT_SEEDED = """
import policysearch, torch
from torch import nn
made = nn.Linear(64, 8)
def net():
    layers = nn.Flatten(), made, nn.ReLU(), nn.Linear(8, 10)
    return policysearch.from_torch(nn.Sequential(*layers), torch.zeros(2, 1, 8, 8))
"""


@pytest.mark.torch
def test_a_net_that_a_file_makes_without_a_seed_is_the_same_in_every_process(folder: Path) -> None:
    """As a process finds it: the file run anew, with torch's generator wherever it is."""
    torch = pytest.importorskip("torch")
    (folder / "net.py").write_text(NOT_SEEDED, encoding="utf-8")
    found, left = [], []
    for seed in (1, 2):
        user_code._module.cache_clear()
        torch.manual_seed(seed)
        found.append(user_code.result_of("task.model", "net.py:net"))
        left.append(torch.rand(1).item())
        torch.manual_seed(seed)
        assert left[-1] == torch.rand(1).item()
    assert left[0] != left[1]
    assert found[0].fingerprint == found[1].fingerprint
    assert np.ptp(found[0].initial["3.weight"]) > 0.0
