"""The package as it is installed: a wheel in a fresh environment, without the repository."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.torch]

ROOT = Path(__file__).parents[1]
PACKED = ("policysearch", "studies", "pyproject.toml", "README.md", "LICENSE")
FEW = ("--trials", "3", "--no-confirm")

SEGMENTS = """
    import torch
    from torch import nn

    class UNet(nn.Module):
        def __init__(self, width=8, classes=3):
            super().__init__()
            self.down1, self.down2 = self.block(1, width), self.block(width, 2 * width)
            self.pool = nn.MaxPool2d(2)
            self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
            self.head = nn.Conv2d(2 * width, classes, 1)

        def block(self, before, after):
            conv = nn.Conv2d(before, after, 3, padding=1)
            return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())

        def forward(self, x):
            a = self.down1(x)
            return self.head(torch.cat([a, self.up(self.down2(self.pool(a)))], dim=1))

    def make_model():
        return UNet()

    def load_data():
        x = torch.randn(300, 1, 16, 16, generator=torch.Generator().manual_seed(3))
        smooth = nn.functional.avg_pool2d(x, 3, 1, 1)
        return smooth, torch.bucketize(smooth[:, 0], torch.tensor([-0.15, 0.15]))
    """
FORECASTS = """
    import numpy as np
    from torch import nn

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

        def forward(self, series):
            hidden, _ = self.lstm(series)
            return self.out(hidden[:, -1])

    def build_model():
        return Forecaster()

    def dataset():
        rng = np.random.default_rng(0)
        t = np.arange(20)[None] * 0.3 + rng.uniform(0, 6, (400, 1))
        wave, other = (f(t * rng.uniform(0.5, 1.5, (400, 1))) for f in (np.sin, np.cos))
        return np.stack([wave[:, :-1], other[:, :-1]], axis=2), wave[:, -1:]
    """
REVIEWS = """
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self, vocabulary=50, width=32, classes=2):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary, width)
            self.place = nn.Parameter(torch.zeros(12, width))
            layer = nn.TransformerEncoderLayer(
                width, 4, 64, dropout=0.1, batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, tokens):
            x = self.encoder(self.embedding(tokens) + self.place)
            return self.fc(self.norm(x).mean(dim=1))

    def net():
        return Classifier()

    def make_data():
        tokens = torch.randint(50, (500, 12), generator=torch.Generator().manual_seed(0))
        return tokens, ((tokens < 20).sum(1) > (tokens >= 35).sum(1)).long()
    """
NETS = {"segment": SEGMENTS, "forecast": FORECASTS, "reviews": REVIEWS}


def said(folder: Path, *command: str | Path) -> str:
    """Run a command in a folder; return what it says on stdout, once it has ended well."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel and what it depends on, the repository gone."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PACKED:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, source)
        else:
            unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=unbuilt)
    pip, alone = (sys.executable, "-m", "pip"), ("-q", "--no-deps", "--no-index")
    said(folder, *pip, "wheel", *alone, "--no-build-isolation", "-w", "out", "./source")
    shutil.rmtree(source)
    (wheel,) = (folder / "out").glob("policysearch-*.whl")
    said(folder, sys.executable, "-m", "venv", "--without-pip", "fresh")
    fresh = folder / "fresh"
    said(folder, *pip, "--python", fresh / "bin" / "python", "install", *alone, wheel)
    # What it depends on is what runs this test: a path here brings no editable install along.
    (packages,) = (fresh / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed), encoding="utf-8")
    where = "import policysearch; print(policysearch.__file__)"
    assert str(packages) in said(folder, fresh / "bin" / "python", "-c", where)
    return fresh / "bin" / "policysearch"


def test_the_example_is_four_commands_from_an_exported_file(command: Path, tmp_path: Path) -> None:
    said(tmp_path, command, "init", "--example")
    assert "verdict: " in said(tmp_path, command, "run", "own-net.toml", *FEW)
    assert "verdict: " in said(tmp_path, command, "show", "own-net.toml")
    said(tmp_path, command, "export", "own-net.toml", "--pick", "verdict")
    compile((tmp_path / "results" / "own-net-torch.py").read_text("utf-8"), "own-net", "exec")


def test_shipped_studies_are_in_the_wheel_and_run(command: Path, tmp_path: Path) -> None:
    shipped = sorted(path.stem for path in (ROOT / "studies").rglob("*.toml"))
    text = (
        "import sys, policysearch\n"
        "for name in sys.argv[1:]: print(policysearch.load_study('studies:' + name).study.name)"
    )
    loaded = said(tmp_path, command.with_name("python"), "-c", text, *shipped)
    assert len(shipped) > 5 and len(loaded.split()) == len(shipped)
    assert "verdict: " in said(tmp_path, command, "run", "studies:mlp-digits", *FEW)
    said(tmp_path, command, "export", "studies:mlp-digits")
    assert (tmp_path / "results" / "mlp-digits-torch.py").is_file()


@pytest.mark.parametrize("name", NETS)
def test_a_net_of_ones_own_reaches_an_exported_file_without_an_edit(
    name: str, command: Path, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(NETS[name]), encoding="utf-8")
    said(tmp_path, command, "init", f"{name}.py", "--steps", "120", "--device", "A100-SXM4-80GB")
    study = f"{name}.toml"
    verdict = said(tmp_path, command, "run", study, *FEW).splitlines()[0]
    assert verdict.startswith("verdict: ") and "not learned" not in verdict
    said(tmp_path, command, "export", study, "--pick", "verdict")
    compile((tmp_path / "results" / f"{name}-torch.py").read_text("utf-8"), name, "exec")
