"""Every block of docs/rewriting.md runs and keeps what it says."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from policysearch.cli import main
from policysearch.nn.models import lenet5
from policysearch.policy.policy_file import read_policy
from policysearch.space.model_space import make_space
from policysearch.space.rules import rules_for, rules_from_data
from policysearch.space.section import SpaceSection

TEXT = (Path(__file__).parents[1] / "docs" / "rewriting.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.S)


def test_the_python_blocks_run_from_top_to_bottom() -> None:
    assert len(blocks("python")) == 9
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/rewriting.md", "exec"), names)
    assert names["policy"].layer("fc3").compute == "bfloat16"


@pytest.mark.parametrize("block", blocks("toml"))
def test_the_rules_of_the_page_match_a_model(block: str) -> None:
    rules = rules_from_data(tomllib.loads(block), "page")
    assert all(each.layers for each in rules_for(rules, lenet5()) if not each.rule.ops)


@pytest.mark.parametrize("block", blocks("toml"))
def test_the_rules_of_the_page_are_a_rules_file_behind_a_base(
    block: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, made = tmp_path / "rules.toml", tmp_path / "made.json"
    path.write_text(f'base = "float32"\n{block}', encoding="utf-8")
    assert main(["apply", str(path), "--model", "lenet5", "--out", str(made)]) == 0
    assert read_policy(made).name == "float32 with rules"
    assert main(["apply", str(path), "--model", "lenet5", "--out", str(made)]) == 2
    assert "the file exists" in capsys.readouterr().err


def test_the_searched_rules_are_decisions() -> None:
    rules = rules_from_data(tomllib.loads(blocks("toml")[2]), "page")
    assert make_space(SpaceSection(("float32",)), lenet5(), rules).choices() == {
        "rule.convolutions": ("float16", "bfloat16"),
        "rule.wide gradients": ("on", "off"),
    }


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(lines) == 3
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "policysearch"
        assert main(arguments) == 0
        said = capsys.readouterr().out
        if arguments[0] == "rules":
            Path("rules.toml").write_text(said, encoding="utf-8")
    assert "pass cancel_casts" in said
