"""TF32 in an exported torch file: one switch for all products of a process, and a line where two
are asked for."""

from __future__ import annotations

from typing import Any

import pytest

from policysearch.export.torch import export, losses, runs
from policysearch.nn.models import lenet5
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import TF32, preset

MODEL = lenet5()
NARROW = uniform_layer("tfloat32")
STRICT = "TF32 is one switch of torch for all float32 products, and conv2 has strict ones"


def changed(**formats: LayerPolicy) -> Policy:
    return preset("torch.autocast.bfloat16", MODEL.layer_names).with_layers(formats)


def test_results_of_tfloat32_products_are_float32() -> None:
    assert preset(TF32, MODEL.layer_names).layer("conv1") == NARROW
    assert (NARROW.output, NARROW.dgrad, NARROW.wgrad) == ("float32", "float32", "float32")


def test_it_runs_beside_low_products_and_layers_without_any() -> None:
    mixed = changed(fc2=NARROW, relu1=LayerPolicy())
    running = runs(mixed, MODEL)
    assert running.layer("fc2") == NARROW and running.layer("fc1").compute == "bfloat16"
    assert not [line for line in losses(mixed, MODEL) if "fc2" in line or "TF32" in line]
    assert runs(running, MODEL) == running
    assert "TF32Forward" in export(mixed, MODEL)
    assert "TF32Forward" not in export(changed(), MODEL)


def test_beside_strict_products_it_is_float32_and_the_file_says_so() -> None:
    two = changed(fc2=NARROW, conv2=LayerPolicy())
    assert runs(two, MODEL).layer("fc2") == LayerPolicy()
    assert f"layer fc2: {STRICT}; it runs in float32" in losses(two, MODEL)
    text = export(two, MODEL)
    assert STRICT in text and "TF32Forward" not in text


@pytest.mark.torch
def test_the_switch_is_on_with_the_policy_and_off_without() -> None:
    torch = pytest.importorskip("torch")
    switches = torch.backends.cuda.matmul, torch.backends.cudnn

    def allowed() -> list[bool]:
        return [each.allow_tf32 for each in switches]

    names: dict[str, Any] = {}
    exec(compile(export(preset(TF32, MODEL.layer_names), MODEL), "exported.py", "exec"), names)
    nn = torch.nn
    parts = {"conv1": nn.Conv2d(1, 6, 5), "conv2": nn.Conv2d(6, 16, 5), "fc1": nn.Linear(400, 120)}
    parts |= {"fc2": nn.Linear(120, 84), "fc3": nn.Linear(84, 10)}
    before = allowed()
    for each in switches:
        each.allow_tf32 = False
    try:
        module = names["apply_policy"](nn.ModuleDict(parts))
        assert allowed() == [True, True]
        names["remove_policy"](module)
        assert allowed() == [False, False]
    finally:
        for each, switch in zip(switches, before, strict=True):
            each.allow_tf32 = switch
