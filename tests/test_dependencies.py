"""What the package asks of its users: every dependency is imported, every import is declared."""

from __future__ import annotations

import sys
import tomllib

from tests.test_floors import PACKAGE, ROOT, imports_of, modules_of

OPTIONAL = {"torch", "yaml", "safetensors", "mindspore", "sklearn", "distributed"}
OPTIONAL |= {"jax", "keras", "flax", "jmp"}


def test_every_dependency_is_imported_and_every_import_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {text.split(">=")[0] for text in project["dependencies"]}
    imported = {
        target.split(".")[0]
        for name, tree in modules_of(ROOT).items()
        for target, _ in imports_of(name, tree, ROOT)
    }
    assert imported - set(sys.stdlib_module_names) - OPTIONAL - {PACKAGE} == declared
