"""What trained runs depend on: what a program says counts, how it is written does not."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import numpy as np
import pytest

from policysearch.search import identity
from policysearch.search.identity import code_fingerprints, libraries

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
    before = code_fingerprints()
    path = package / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert code_fingerprints() == before
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
    before = code_fingerprints()
    path = package / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    after = code_fingerprints()
    assert [file for file in before if before[file] != after[file]] == [name]


def test_the_real_package_counts_its_rounding_in_c_and_headers() -> None:
    names = set(code_fingerprints())
    sources = importlib.resources.files("policysearch")
    # There are none where the tests run on the reference alone.
    compiled = {path.name for path in Path(str(sources)).rglob("*.[ch]")}
    assert compiled <= {name.rpartition("/")[2] for name in names}
    assert not any(name.startswith(("search/", "cost/", "report/", "export/")) for name in names)


def test_libraries_name_numpy_and_its_blas_kernel() -> None:
    found = libraries()
    assert found["numpy"] == np.__version__
    assert found["blas"].strip()
