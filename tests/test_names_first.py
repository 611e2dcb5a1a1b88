"""A misspelt name is refused before the user's net is read, imported or made."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.common import trained_here
from policysearch.cli import main
from policysearch.commands.trust import VARIABLE
from policysearch.policy.presets import preset
from policysearch.train import user_code
from tests.studies import write_study
from tests.test_kept import NET, OWN

MARK = 'open("it-ran", "a").close()\n'
SCRIPT = """
def script():
    from policysearch.train.scripts.script import Script
    recipe = {"steps": 6, "tail_steps": 3, "batch_size": 32, "learning_rate": 0.1}
    return Script(model(), data(), recipe)
"""
NETS = {
    "net": OWN,
    "script": (
        ('model = "mlp"\nactivation = "tanh"\nwidths = [8]\n', 'script = "net.py:script"\n'),
        ('data = "digits"\n', ""),
        ('ops = ["tanh"]\n', ""),
        ("trials = 6", "trials = 5"),
    ),
}
COMMANDS = (
    *("export tiny.toml --target torhc", "export preset:bfloat16 --study tiny.toml --target torhc"),
    *("export preset:bfloat61 --study tiny.toml", "export none.json --study tiny.toml"),
    *("export bad.json --study tiny.toml", "export tiny.toml --fits H100X"),
    "verify preset:bfloat16 --study tiny.toml --target torhc",
    "verify made.py --study tiny.toml --target torhc",
    *(f"{name} made.py --study tiny.toml --target torhc" for name in ("inspect", "import")),
    *(
        f"{name} {policy} --study tiny.toml"
        for name in ("explain", "rules", "profile", "try", "diagnose", "verify", "why")
        for policy in ("preset:bfloat61", "bfloat16", "none.json", "bad.json")
    ),
    *(f"mismatch preset:bfloat16 {name} --study tiny.toml" for name in ("preset:x", "none.json")),
    "why preset:bfloat61 dense1 --study tiny.toml",
    *("show tiny.toml --policy preset:bfloat61", "confirm tiny.toml --steps 10x --seeds 0"),
    *("run tiny.toml --goal gapp<=0.1", "run tiny.toml --trials 0"),
)
KEYS = (
    ('device = "H100-SXM5"', 'device = "H100-SXM"'),
    ('stack = "torch.compile"', 'stack = "torch.compiled"'),
    ('sampler = "random"', 'sampler = "randon"'),
    ('"apex.O3"]', '"apex.O33"]'),
    ('"float32", "bfloat16"', '"float32", "bfloat61"'),
    ("trials = 5", 'trials = 5\nbaseline = "bfloat61"'),
    ("trials = 5", 'trials = 5\ntarget = "torhc"'),
    ("trials = 5", "trails = 5"),
    ("[space]", "[goal]\ngapp = 0.1\n[space]"),
    ("[space]", "[parallel]\ndevice = 2\n[space]"),
    ("[space]", '[objectives]\nnames = ["speedupp"]\n[space]'),
    ("[space]", "[spaces]\n[space]"),
    ("[space]", '[[rules]]\nlayer = "fc1"\nformat = "bfloat16"\n[space]'),
    ("learning_rate = 0.1", 'optimizer = "sdg"'),
    ("learning_rate = 0.1", "learning_rat = 0.1"),
    ("steps = 6\n", 'steps = "six"\n'),
)


@pytest.fixture(params=NETS)
def net(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    one_process: None,
) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "1")
    (tmp_path / "net.py").write_text(MARK + NET + SCRIPT)
    (tmp_path / "made.py").write_text(MARK)
    (tmp_path / "bad.json").write_text(preset("bfloat16", ("fc1",)).to_json().replace("fc1", "\n"))
    user_code._module.cache_clear()
    return str(request.param)


def refused(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command says that it refuses; it runs none of the net's file."""
    assert main(line.split()) == 2, line
    assert not (folder / "it-ran").exists(), line
    return capsys.readouterr().err


def test_a_command_refuses_a_misspelt_name_before_the_net_is_read(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, *NETS[net])
    for line in COMMANDS:
        said = refused(line, tmp_path, capsys)
        assert "expected" in said and said.count("\n") == 1, said
    assert main(["explain", "preset:bfloat16", "--study", "tiny.toml"]) == 0
    assert (tmp_path / "it-ran").exists()


def test_a_study_refuses_a_misspelt_name_before_the_net_is_read(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for change in KEYS:
        write_study(tmp_path, *NETS[net], change)
        for line in ("run tiny.toml", "estimate tiny.toml"):
            assert "tiny.toml: " in refused(line, tmp_path, capsys)


def test_a_layer_is_looked_for_in_what_is_known_of_a_study(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, *NETS[net])
    with trained_here():
        assert main(["run", "tiny.toml", "--no-confirm"]) == 0
    capsys.readouterr()
    (tmp_path / "it-ran").unlink()
    user_code._module.cache_clear()
    said = refused("why 1 fc3 --study tiny.toml", tmp_path, capsys)
    assert said.startswith("policysearch: layer: 'fc3'; expected one of flatten, fc1, tanh1, fc2")
