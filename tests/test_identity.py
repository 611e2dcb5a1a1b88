"""What trained runs depend on: what a program says counts, how it is written does not."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.resources
import json
import re
import sys
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from policysearch.study.journal import identity
from policysearch.study.journal.identity import (
    check_identity,
    code_fingerprints,
    differences,
    identity_of,
    libraries,
)
from policysearch.train.groups import Group
from policysearch.train.tasks import Task
from policysearch.values import InputError, choices

PYTHON = '"""Doc."""\nx = f(1,  2)  # why\n\n\ndef g(a):\n    """Doc."""\n    return a\n'
C = '#define A 1  // one\nint f(int a) { /* two */ return a + 1; }\nconst char *s = "// no";\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a few files in place of the real one."""
    for name, text in (("a/x.py", PYTHON), ("a/y.c", C), ("a/z.h", C), ("search/s.py", PYTHON)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "cli.py").write_text("x = 1")
    monkeypatch.setattr(identity, "files", lambda _: tmp_path)
    return tmp_path


def rewritten(path: Path, old: str, new: str) -> tuple[dict[str, str], dict[str, str]]:
    """Replace `old` in a file of the package; return the fingerprints before and after."""
    before = code_fingerprints()
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return before, code_fingerprints()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a/x.py", "# why", "# because"),
        ("a/x.py", '"""Doc."""', '"""Other."""'),
        ("a/x.py", "1,  2", "\n    1,\n    2,\n"),
        ("a/y.c", "// one", "/* 1 */"),
        ("a/y.c", "/* two */ return", "\n    return"),
        ("a/z.h", "a + 1", "a+1"),
        ("search/s.py", "2", "3"),
    ],
)
def test_comments_formatting_and_what_comes_afterwards_do_not_count(
    package: Path, name: str, old: str, new: str
) -> None:
    before, after = rewritten(package / name, old, new)
    assert after == before
    assert before.keys() == {"a/x.py", "a/y.c", "a/z.h"}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("a/x.py", "1,", "3,"),
        ("a/x.py", "return a", "return -a"),
        ("a/y.c", "A 1", "A 2"),
        ("a/y.c", "// no", "// yes"),
        ("a/y.c", "A 1  // one\nint", "A 1 int"),
        ("a/z.h", "a + 1", "a + 2"),
    ],
)
def test_every_change_of_meaning_counts_and_names_its_file(
    package: Path, name: str, old: str, new: str
) -> None:
    before, after = rewritten(package / name, old, new)
    assert [file for file in before if before[file] != after[file]] == [name]


def test_digests_that_another_process_kept_are_read_only_where_this_code_made_them(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, fresh = package / "kept", code_fingerprints()
    monkeypatch.setattr(identity, "_kept_at", lambda: place)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def again() -> dict[str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(identity, "_known", functools.cache(identity._known.__wrapped__))
            return code_fingerprints()

    assert again() == fresh
    kept = json.loads(place.read_text())
    with monkeypatch.context() as patch:
        patch.setattr(identity, "_meaning", lambda *_: "worked out")
        assert again() == fresh
    other = {key: "0" * 16 for key in kept} | {"by": "another version"}
    for text in ("", "{", "[]", "\xff", json.dumps(other)):
        place.write_text(text, encoding="latin-1")
        assert again() == fresh
    monkeypatch.setattr(identity, "_kept_at", lambda: package / "nowhere" / "kept")
    assert again() == fresh
    (package / "a" / "x.py").write_text("x = 2")
    assert again() != fresh


ODD = (
    'def f(a, *b, c=None, **d):\n    "Doc."\n    return {**d, None: (), "a": f"{a!r:>{c}}"}, ...\n',
    "x: int = -1.5e-300j\nglobal_ = b'\\x00', '\\n\"', None, [], {}, True\nclass A: 'text'\n",
    "async def g():\n    async for x in [y for y in z if not w]: yield\n    lambda: (yield)\n",
)


@pytest.mark.parametrize("text", [*ODD, Path(identity.__file__).read_text(encoding="utf-8")])
def test_a_digest_of_python_is_of_what_it_was_of_in_every_journal(text: str) -> None:
    def said(node: Any) -> Any:
        if isinstance(node, list):
            return [said(item) for item in node if not identity._is_text(item)]
        if not isinstance(node, ast.AST):
            return node
        pairs = [(name, said(value)) for name, value in ast.iter_fields(node)]
        return type(node).__name__, [pair for pair in pairs if pair[1] not in (None, [])]

    assert identity._meaning("py", text) == repr(said(ast.parse(text)))


def test_the_real_package_counts_its_rounding_in_c_and_headers() -> None:
    names = set(code_fingerprints())
    sources = importlib.resources.files("policysearch")
    # There are none where the tests run on the reference alone.
    compiled = {path.name for path in Path(str(sources)).rglob("*.[ch]")}
    assert compiled <= {name.rpartition("/")[2] for name in names}
    assert not any(name.startswith(("search/", "cost/", "report/", "export/")) for name in names)


def test_the_rules_of_importing_count() -> None:
    """The fingerprint of an imported net is of its program; rules decide what is trained of it."""
    assert "importers/elementwise.py" in code_fingerprints()


def test_libraries_name_numpy_and_its_blas_kernel() -> None:
    found = libraries()
    assert found["numpy"] == np.__version__
    assert found["blas"].strip()


CODE = {"a.py": "1", "b.py": "2", "c.py": "3", "d.py": "4"}
LIBRARIES = {"numpy": "2.0", "blas": "openblas", "simd": "AVX2"}
NOW: dict[str, Any] = {
    "model": "m" * 64,
    "task": {"steps": 6, "model": "mlp"},
    "data": "d" * 64,
    "float32": "f" * 64,
    "code": CODE,
    "libraries": LIBRARIES,
}


def with_parts(**parts: Any) -> dict[str, Any]:
    return {**NOW, **parts}


def test_what_is_equal_may_be_added_to() -> None:
    assert differences(NOW, NOW) == []
    check_identity(with_parts(), NOW, "a.journal")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a.py": "9"}, "code differs: a.py"),
        ({"e.py": "5"}, "code differs: e.py"),
        ({"a.py": "9", "b.py": "9", "c.py": "9"}, "code differs: a.py, b.py, c.py"),
        (dict.fromkeys(CODE, "9"), "code differs: a.py, b.py, c.py and 1 more"),
        ({**dict.fromkeys(CODE, "9"), "e.py": "5"}, "code differs: a.py, b.py, c.py and 2 more"),
    ],
)
def test_code_that_differs_is_named_up_to_three_files(changed: dict[str, str], said: str) -> None:
    recorded = with_parts(code={**CODE, **changed})
    assert differences(recorded, NOW) == [said]
    with pytest.raises(InputError, match=rf"^storage a\.journal: {re.escape(said)}; expected"):
        check_identity(recorded, NOW, "a.journal")
    check_identity(recorded, NOW, "a.journal", accept=True)


def test_libraries_that_differ_are_named_with_both_versions() -> None:
    recorded = with_parts(libraries={**LIBRARIES, "numpy": "1.0"}, code={**CODE, "a.py": "9"})
    said = ["code differs: a.py", "libraries differ: numpy 2.0 (was 1.0)"]
    assert differences(recorded, NOW) == said
    with pytest.raises(InputError, match=re.escape("; ".join(said))):
        check_identity(recorded, NOW, "a.journal")


def test_a_record_without_a_part_differs_in_all_of_it() -> None:
    bare = {key: value for key, value in NOW.items() if key not in ("code", "libraries")}
    assert differences(bare, NOW) == [
        "code differs: a.py, b.py, c.py and 1 more",
        "libraries differ: blas openblas (was None), numpy 2.0 (was None), simd AVX2 (was None)",
    ]


@pytest.mark.parametrize("accept", [False, True])
def test_other_data_or_another_task_are_never_added_to(accept: bool) -> None:
    with pytest.raises(InputError, match=r"model differs: .*; expected eeeeeeeeeeee,"):
        check_identity(with_parts(model="e" * 64), NOW, "a.journal", accept)
    with pytest.raises(InputError, match=r"data differs: dddddddddddd; expected eeeeeeeeeeee,"):
        check_identity(with_parts(data="e" * 64), NOW, "a.journal", accept)
    for task, said in (
        ({"steps": 7, "model": "mlp"}, "task.steps: 6; expected 7,"),
        ({"steps": 6, "model": "mlp", "old": 1}, "task.old: None; expected 1,"),
        ({"steps": 6}, "task.model: 'mlp'; expected None,"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            check_identity(with_parts(task=task), NOW, "a.journal", accept)


def mean_output(outputs: Any, labels: Any) -> float:
    return float(np.mean(outputs))


# What a task may be instead, where a number would not do.
OTHERS: dict[str, Any] = {
    "data_folder": "elsewhere",
    "model": "lenet5",
    "widths": (9,),
    "data": "digits32",
    "loss": "mean_squared_error",
    "activation": "tanh",
    "graph_rules": ("net.py:rule",),
    "metric": mean_output,
    "ema_storage": "bfloat16",
    "groups": (Group(("*.bias",), frozen=True),),
}


def other_value(owner: Any, field: dataclasses.Field[Any]) -> Any:
    old = getattr(owner, field.name)
    if field.name in OTHERS:
        return OTHERS[field.name]
    if dataclasses.is_dataclass(old) and not isinstance(old, type):
        inner = next(f for f in dataclasses.fields(old) if isinstance(getattr(old, f.name), int))
        return dataclasses.replace(old, **{inner.name: other_value(old, inner)})
    if isinstance(old, str):
        hints = get_type_hints(type(owner), include_extras=True)
        return next(choice for choice in choices(hints[field.name]) if choice != old)
    return not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else (old or 1) / 2


@pytest.mark.parametrize("field", dataclasses.fields(Task), ids=lambda field: field.name)
def test_every_field_of_a_task_counts_but_the_place_of_its_files(
    field: dataclasses.Field[Any],
) -> None:
    decay = 0.9 if field.name.startswith("ema") else None
    task = Task(model="mlp", widths=(8,), data="digits", steps=60, ema_decay=decay)
    if field.name == "script":  # a key of study files, which names all the others
        with pytest.raises(InputError, match="in a study file"):
            dataclasses.replace(task, script="net.py:script")
        return
    other = dataclasses.replace(task, **{field.name: other_value(task, field)})
    assert getattr(other, field.name) != getattr(task, field.name)
    assert (other.to_plain() == task.to_plain()) == (field.name == "data_folder")


def test_the_identity_holds_what_was_given_and_what_computes() -> None:
    task = Task(model="mlp", widths=(8,), data="digits", steps=60)
    found = identity_of(task, "model", "data", "float32")
    assert found == {
        "task": task.to_plain(),
        "model": "model",
        "data": "data",
        "float32": "float32",
        "code": code_fingerprints(),
        "libraries": libraries(),
    }
    assert found["task"]["widths"] == [8] and found["task"]["steps"] == 60


def test_libraries_are_numpy_its_blas_and_its_simd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only numpy's own BLAS counts where there are two, and any where numpy's is not told apart."""
    ours = {"user_api": "blas", "filepath": "/x/numpy.libs/a.so", "internal_api": "openblas"}
    rows = [
        {**ours, "version": "0.3", "architecture": "Haswell"},
        {"user_api": "blas", "filepath": "/x/scipy.libs/b.so", "internal_api": "mkl"},
        {"user_api": "openmp", "filepath": "/x/numpy.libs/c.so", "internal_api": "openmp"},
    ]
    monkeypatch.setattr(identity, "threadpool_info", lambda: rows)
    simd: Any = np.show_config(mode="dicts")
    found = libraries()
    assert found["blas"] == "openblas 0.3 Haswell"
    assert found["numpy"] == np.__version__
    assert found["simd"].split() == list(simd.get("SIMD Extensions", {}).get("found", []))
    assert found.keys() == {"numpy", "blas", "simd"}
    rows[0]["filepath"] = "/usr/lib/libopenblas.so"
    assert libraries()["blas"] == "mkl None None, openblas 0.3 Haswell"


@pytest.mark.parametrize("name", ["a/x.py", "a/y.c", "a/z.h", "a/t.json"])
def test_a_file_of_each_kind_counts(package: Path, name: str) -> None:
    (package / "a" / "t.json").write_text('{"a": 1, "b": [2]}')
    (package / "a" / "notes.txt").write_text("nothing")
    before = code_fingerprints()
    assert before.keys() == {"a/x.py", "a/y.c", "a/z.h", "a/t.json"}
    new = {"x.py": "y = 2", "y.c": "int y;", "z.h": "int z;", "t.json": '{"b": [2], "a": 2}'}
    (package / name).write_text(new[name.partition("/")[2]])
    after = code_fingerprints()
    assert [file for file in before if before[file] != after[file]] == [name]
    (package / "a" / "t.json").write_text('{"b": [2],\n "a": 1}')
    if name == "a/x.py":
        assert code_fingerprints()["a/t.json"] == before["a/t.json"]


@pytest.mark.parametrize("room", ["commands", "cost", "search", "report", "export", "verify"])
def test_rooms_that_come_afterwards_do_not_count(package: Path, room: str) -> None:
    (package / room).mkdir(exist_ok=True)
    (package / room / "m.py").write_text("x = 1")
    assert code_fingerprints().keys() == {"a/x.py", "a/y.c", "a/z.h"}
    assert f"{room}/m.py" in code_fingerprints(left_out=())
    # A folder of that name further down is another room.
    (package / "a" / room).mkdir()
    (package / "a" / room / "m.py").write_text("x = 1")
    assert f"a/{room}/m.py" in code_fingerprints()


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py", "api.py", "cli.py"])
def test_modules_at_the_top_do_not_count(package: Path, name: str) -> None:
    (package / name).write_text("x = 1")
    assert code_fingerprints().keys() == {"a/x.py", "a/y.c", "a/z.h"}
