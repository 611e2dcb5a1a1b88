"""What the pages for users name is there: files, sections, commands, options; and code runs."""

from __future__ import annotations

import argparse
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from policysearch.cli import parser

ROOT = Path(__file__).parents[1]
TOP = tuple(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))
PAGES = {str(p.relative_to(ROOT)): p for p in (*TOP, *sorted((ROOT / "docs").rglob("*.md")))}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
FOREIGN = {
    "--te-precision-config-file",
    "--grad-reduce-in-bf16",
    "--exp-avg-sq-dtype",
    "--loss-scale",
}
"""Options of trainers that policies are written for."""
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")


def anchors(page: Path) -> set[str]:
    """Return the names that its headings are linked by, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page: Path) -> list[str]:
    """Return the lines of its sh blocks and what stands between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    lines = (line.partition("#")[0] for block in blocks for line in block.splitlines())
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return [" ".join(said.split()) for said in chain(lines, re.findall(r"`([^`]+)`", prose))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = PAGES[page]
    for file, section in LINK.findall(path.read_text(encoding="utf-8")):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not section or section in anchors(target), f"{file}#{section}"


def source_of(module: str) -> str:
    """Return the code of a module, or of the __main__ of a package, and of the options of all."""
    path = ROOT.joinpath(*module.split("."))
    main = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    shared = ROOT / "benchmarks" / "timing.py"
    return main.read_text(encoding="utf-8") + shared.read_text(encoding="utf-8")


def subparsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command, its arguments added."""
    actions = parser()._actions
    (found,) = (a for a in actions if isinstance(a, argparse._SubParsersAction))
    return {name: choice.with_arguments() for name, choice in found.choices.items()}


def test_commands_and_their_options_exist() -> None:
    known, count = subparsers(), 0
    for command in chain.from_iterable(map(commands, PAGES.values())):
        found = re.search(r"(?:^|/)policysearch ([a-z][a-z-]*)(.*)", command)
        if found is not None:
            assert found[1] in known, command
            assert set(OPTION.findall(found[2])) <= known[found[1]]._option_string_actions.keys()
            count += 1
    assert count > 100


def test_benchmarks_and_their_options_exist() -> None:
    count = 0
    for command in chain.from_iterable(map(commands, PAGES.values())):
        found = re.search(r"python -m (benchmarks[\w.]*)(.*)", command)
        if found is not None:
            source = source_of(found[1])
            assert all(f'"{each}"' in source for each in OPTION.findall(found[2])), command
            count += 1
    assert count > 50


def test_options_named_by_themselves_are_those_of_some_command() -> None:
    known = set(chain.from_iterable(p._option_string_actions for p in subparsers().values()))
    measured = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "benchmarks").rglob("*.py"))
    alone = [c for c in chain.from_iterable(map(commands, PAGES.values())) if c.startswith("--")]
    for option in chain.from_iterable(map(OPTION.findall, alone)):
        assert option in known | FOREIGN or f'"{option}"' in measured, option
    assert len(alone) > 50


@pytest.mark.parametrize("page", ["docs/tutorials.md", "docs/policy-file.md"])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGES[page].read_text(encoding="utf-8"), re.S)
    own = [block for block in blocks if "from exported import" not in block]
    assert own
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in own:
        exec(compile(block, page, "exec"), names)


ANSWERED = {
    "Will FP8 train my net, and is it faster on my H100?": ("preset:te.current", "H100-SXM5"),
    "How long will the search take?": ("policysearch estimate", "ms |"),
    "My net is large: what is a layer, what is a block?": ("up to its first part", "granularity"),
    "Which policy is picked, and when should I not take it?": ("sqrt(", "Do not take it"),
    "What does *modeled* mean, and how far off is it?": ("computed for the device", "off by 14 %"),
    "Can a layer stay in bfloat16 whatever is searched?": ('formats = ["bfloat16", "float32"]',),
    "Is it faster than what I run today?": ("baseline", "--trial"),
    "Which file do I ship, and what about accumulation and clipping?": (
        "ship one",
        "unscale_",
        "accumulation_steps",
    ),
    "My loss is NaN.": ("policysearch diagnose", "65504"),
    "The run was killed, or I changed the recipe. How do I go on?": (
        "the same command goes on",
        "the learning rate is one",
    ),
    "My device is not in the list.": ("bandwidth =", "policysearch calibrate"),
}
"""Questions of strangers, and what the first page that is named for each says."""


def test_questions_of_a_stranger_are_answered_on_the_page_that_is_named() -> None:
    index = PAGES["docs/index.md"].read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (.*?) \| \[.*?\]\((.*?)\) \|$", index, re.M))
    assert rows.keys() == ANSWERED.keys()
    for question, link in rows.items():
        file, _, section = link.partition("#")
        text = (ROOT / "docs" / file).read_text(encoding="utf-8")
        parts = re.split(r"^(?=##? )", text, flags=re.M)
        said = text
        if section:
            wanted = section.replace("-", " ")
            (said,) = (
                p
                for p in parts
                if re.sub(r"[^\w ]", "", p.partition("\n")[0]).strip().lower() == wanted
            )
        for word in ANSWERED[question]:
            assert word in " ".join(said.split()), (question, word)
