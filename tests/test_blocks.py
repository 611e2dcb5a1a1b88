"""The blocks of the manual run as they stand, or are held against the parser and the API.

Pages that have tests of their own are in `OF_THEIR_OWN`. Options of commands and links of all pages
are checked in test_pages.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import policysearch
from policysearch.cli import main
from policysearch.cost.device_file import read_device
from policysearch.study.specification import load_spec
from tests.studies import replaced_training, write_study
from tests.test_prose import MANUAL, ROOT

OF_THEIR_OWN = {
    "README.md": "test_api.py, test_questions.py",
    "docs/own-net.md": "test_own_net.py",
    "docs/own-script.md": "test_own_script.py",
    "docs/policy-file.md": "test_pages.py",
    "docs/rewriting.md": "test_rewriting_page.py",
    "docs/tutorials.md": "test_pages.py",
}
HERE = {"docs/apply.md", "docs/cluster.md", "docs/failures.md", "docs/start.md", "docs/storage.md"}
KEYS = (ROOT / "docs" / "study-file.md").read_text(encoding="utf-8")
PROGRAMS = {"policysearch", "python", "pip", "pytest", "dask", "cp", "make", "source"}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(page: str) -> list[list[str]]:
    lines = "\n".join(blocks(page, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_no_page_with_python_is_left_out() -> None:
    assert {page for page in MANUAL if blocks(page, "python")} == {*OF_THEIR_OWN, *HERE}
    for names in OF_THEIR_OWN.values():
        assert all((ROOT / "tests" / name).exists() for name in names.split(", "))


@pytest.mark.parametrize("page", MANUAL)
def test_commands_are_of_programs_that_the_manual_installs(page: str) -> None:
    assert {Path(words[0]).name for words in commands(page)} <= PROGRAMS


@pytest.mark.parametrize("page", sorted({*OF_THEIR_OWN, *HERE}))
def test_python_names_the_api_and_its_arguments(page: str) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of, name = node.func.value, node.func.attr
            if isinstance(of, ast.Name) and of.id in ("ps", "policysearch"):
                assert name in policysearch.__all__
                taken = inspect.signature(getattr(policysearch, name)).parameters
                more = any(each.kind is each.VAR_KEYWORD for each in taken.values())
                said = {word.arg for word in node.keywords} - taken.keys()
                options = set(re.findall(r"^\| `(\w+)` \|", KEYS, re.M)) | {"pads", "length"}
                assert not said or (more and said <= options), said


def test_json_and_toml_can_be_read(tmp_path: Path) -> None:
    for page in MANUAL:
        for block in blocks(page, "json"):
            json.loads("{" + block + "}")
        for block in blocks(page, "toml"):
            tomllib.loads(block)
    path = tmp_path / "mine.toml"
    (block,) = blocks("docs/measured-speed.md", "toml")
    path.write_text(block, encoding="utf-8")
    assert read_device(path).peaks


def test_the_groups_of_the_page_are_those_of_a_study(tmp_path: Path) -> None:
    (block,) = blocks("docs/own-net.md", "toml")
    for old, new in (('block = "encoder.*"', 'layer = "fc1"'), ('["head"]', '["fc2"]')):
        assert block.count(old) == 1
        block = block.replace(old, new)
    path = write_study(tmp_path)
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{block}", encoding="utf-8")
    assert [group.name for group in load_spec(path).space.groups] == ["encoder", "head"]


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the net and the study of start.md, and a policy exported from it."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(blocks("docs/start.md", "python")[0], encoding="utf-8")
    page = commands("docs/start.md")
    (init,) = (words for words in page if words[:2] == ["policysearch", "init"])
    assert main(init[1:]) == 0
    assert main(["export", "preset:torch.autocast.bfloat16", "--study", "net.toml"]) == 0
    (copy,) = (words for words in page if words[0] == "cp")
    shutil.copy(copy[1], copy[2])
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.torch
@pytest.mark.parametrize("page", ["docs/start.md", "docs/apply.md"])
def test_the_training_loop_of_the_page_trains(page: str, exported: Path) -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {}
    exec(blocks("docs/start.md", "python")[0], names)
    made, model = names["model"](), names["model"]
    names["model"] = lambda: made
    x, y = names["data"]()
    before = [p.detach().clone() for p in made.parameters()]
    batches = list(zip(x.split(50), y.split(50), strict=True))
    names |= {"batches": batches, "micro_batches": [batches[:4], batches[4:8]]}
    block = blocks(page, "python")[-1]
    assert block.count(".cuda()") == 1 and block.count('"cuda"') == 2
    exec(block.replace(".cuda()", "").replace('"cuda"', '"cpu"'), names)
    assert names["net"] is made and names["net"](x).dtype is torch.float32
    moved = [
        float((p.detach() - q).abs().max()) for p, q in zip(made.parameters(), before, strict=True)
    ]
    assert min(moved) > 1e-4 and torch.isfinite(names["loss"])
    plain = model()
    plain.load_state_dict(made.state_dict())
    assert not torch.equal(plain(x), made(x)), "the policy is not obeyed"


@pytest.mark.torch
def test_the_commands_around_the_loop_run(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (verify,) = (words for words in commands("docs/apply.md") if "verify" in words)
    assert verify in commands("docs/start.md")
    assert main(verify[1:]) == 0
    assert "pass" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.torch
def test_a_recorded_training_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def train() -> None:
        for _ in range(21):
            optimizer.zero_grad()
            scaler.scale(net(torch.ones(3, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    (block,) = blocks("docs/failures.md", "python")
    names = dict(net=net, optimizer=optimizer, scaler=scaler, train=train)
    exec(block, names | {"policysearch": policysearch})
    (log,) = (words for words in commands("docs/failures.md") if "--log" in words)
    assert main(log[1:]) == 0
    assert capsys.readouterr().out


def test_optuna_reads_the_journal_and_takes_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").mkdir()
    name = ('name = "tiny"', 'name = "mlp-digits"')
    path = write_study(tmp_path / "studies", name, name="mlp-digits.toml")
    monkeypatch.chdir(tmp_path)
    with replaced_training():
        policysearch.run_study(policysearch.load_study(path), processes=0, progress=False)
    names: dict[str, Any] = {
        "load_study": policysearch.load_study,
        "score": lambda policy: (len(policy.digest) * 1e-4, 1.0, 1.0),
    }
    read, sampled = blocks("docs/storage.md", "python")
    exec(read, names)
    assert len(names["study"].trials) == 6
    assert sampled.count(", 40)") == 1
    exec(sampled.replace(", 40)", ", 4)"), names)
    assert len(names["study"].trials) == 4
