"""Files that choose among ops alone: what is registered in Apex, and what CANN is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policysearch.export import apex, cann
from policysearch.nn.models import mlp
from policysearch.policy.presets import preset
from policysearch.values import InputError

MODEL = mlp((64, 32, 10))


class Amp:
    """What a script imports from Apex, noting what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: self.calls.append((name, given, options))


def test_functions_are_registered_before_initialize() -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, Any] = {"__name__": "file"}
    text = apex.export(preset("apex.O1", MODEL.layer_names), MODEL)
    exec(compile(text, "file.py", "exec"), space)
    amp = Amp()
    space["initialize"](amp, "model", "optimizer")
    *registered, (last, given, options) = amp.calls
    assert last == "initialize" and given == ("model", "optimizer")
    bounds = {"min_loss_scale": None, "max_loss_scale": 2.0**24}
    first = {"loss_scale": "dynamic", "dynamic_init_scale": 2.0**16}
    assert options == {"opt_level": "O1", **first, **bounds}
    by_kind = {name: {g[1] for n, g, _ in registered if n == name} for name, *_ in registered}
    assert {"linear", "matmul", "conv2d"} <= by_kind["register_half_function"]
    assert {"softmax", "exp", "layer_norm"} <= by_kind["register_float_function"]
    assert all(hasattr(place, name) for _, (place, name), _ in registered)
    for name in (name for names in apex.NAMES.values() for name in names):
        module, _, function = name.rpartition(".")
        assert hasattr(torch if module == "torch" else torch.nn.functional, function), name
    wide = apex.export(preset("bfloat16", MODEL.layer_names), MODEL)
    exec(compile(wide, "file.py", "exec"), space)
    amp.calls.clear()
    space["initialize"](amp, "model", "optimizer")
    assert amp.calls == [("initialize", ("model", "optimizer"), {"opt_level": "O0"})]


def test_the_lists_of_cann_are_what_the_file_prints(tmp_path: Path) -> None:
    text = cann.export(preset("torch.autocast.float16", MODEL.layer_names), MODEL)
    (tmp_path / "file.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "file.py")], capture_output=True, check=True
    )
    lists = json.loads(done.stdout)
    assert set(lists) == {"white-list", "black-list", "gray-list"}
    assert {"MatMulV2", "BatchMatMulV2", "Conv2D"} <= set(lists["white-list"]["to-add"])
    assert {"SoftmaxV2", "SoftmaxGrad", "Exp"} <= set(lists["black-list"]["to-add"])
    assert "Relu" in lists["gray-list"]["to-add"]
    assert all(row["to-remove"] == [] for row in lists.values())
    space: dict[str, Any] = {"__name__": "file"}
    exec(text, space)
    assert space["PRECISION_MODE"] == "mixed_float16"


def test_mistakes_in_a_file_are_one_line() -> None:
    text = cann.export(preset("torch.autocast.float16", MODEL.layer_names), MODEL)
    with pytest.raises(InputError, match=r"^f: LOW: op: 'matmull'; did you mean 'matmul'"):
        cann.read(text.replace("LOW = {'matmul'", "LOW = {'matmull'"), MODEL, "f")
    mixed = text.replace("'fc1': 'float16'", "'fc1': 'bfloat16'")
    with pytest.raises(InputError, match=r"^f: LAYERS: bfloat16, float16; expected one dtype"):
        cann.read(mixed, MODEL, "f")
