"""What an exported torch file states in its head, without torch itself."""

from __future__ import annotations

import ast
import dataclasses
import re
from dataclasses import replace
from typing import Any

import pytest

from policysearch.export.reading import grouped
from policysearch.export.targets import target_named, targets
from policysearch.export.torch import export, losses, runs
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Phase, uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.values import InputError

MODEL = lenet5()


@pytest.mark.parametrize("name", PRESETS)
def test_the_file_is_self_contained_and_states_its_losses(name: str) -> None:
    policy = preset(name, MODEL.layer_names)
    text = export(policy, MODEL)
    compile(text, "exported.py", "exec")
    assert policy.digest in text and "import policysearch" not in text
    imports = [line.split()[1] for line in text.splitlines() if "import" in line.split()]
    standard = ["contextlib", "copy", "dataclasses", "inspect", "types"]
    assert imports == [*standard, "torch", "torch.overrides", "importlib"]
    for line in grouped(losses(policy, MODEL)):
        assert f"#   - {line}\n" in text
    assert ("#   - nothing\n" in text) == (losses(policy, MODEL) == ())


def test_what_adds_a_bias_without_a_product_is_named() -> None:
    """The positions of a transformer are added; its norms add within themselves."""
    for model, added in ((MODEL, ()), (transformer((1, 8, 8), 10, 8, (16,), 2), ("position",))):
        text = export(preset("float16", model.layer_names), model)
        (rows,) = re.findall(r"^BIASES = (\(.*?\))$", text, re.M | re.S)
        assert ast.literal_eval(rows) == added


@pytest.mark.parametrize(
    ("changes", "loss"),
    [
        ({"phases": (Phase(5, (("fc1", LayerPolicy()),)),)}, "phases: the formats of step 0"),
        ({"all_reduce": "bfloat16"}, "all_reduce: gradients are reduced as float32"),
        ({"optimizer_state": "float16"}, "optimizer_state: torch keeps float32"),
        ({"optimizer_order": "eager", "optimizer_scalars": "storage"}, None),
        ({"bias": "rounded"}, "bias: torch adds it before the one rounding"),
        ({"master_weights": False, "loss_scale": LossScale("fixed", 1024.0)}, None),
        ({"loss_scale": LossScale("fixed", 2.0, skip_on_overflow=False)}, None),
        (
            {"loss_scale": LossScale("dynamic", 2.0, rule="keras.LossScaleOptimizer")},
            "loss_scale: events follow the order of GradScaler, not of keras",
        ),
    ],
)
def test_what_torch_cannot_do_is_said(changes: dict[str, Any], loss: str | None) -> None:
    policy = preset("bfloat16", MODEL.layer_names)
    assert losses(policy, MODEL) == ()
    said = losses(dataclasses.replace(policy, **changes), MODEL)
    assert bool(said) == (loss is not None)
    assert loss is None or said[0].startswith(loss)


def test_a_state_that_is_not_kept_as_its_parameter_is_said() -> None:
    policy = preset("apex.O3", MODEL.layer_names)
    assert policy.optimizer_state == "float16"
    wide = dataclasses.replace(policy, optimizer_state="float32")
    said = [line for line in losses(wide, MODEL) if line not in losses(policy, MODEL)]
    assert said == ["optimizer_state: torch keeps float16, as parameters are stored, not float32"]
    assert losses(dataclasses.replace(policy, optimizer_state="param"), MODEL) == losses(
        policy, MODEL
    )


def test_orders_of_the_optimizer_are_said_where_parameters_are_low() -> None:
    policy = preset("apex.O3", MODEL.layer_names)
    eager, fused = (
        losses(dataclasses.replace(policy, optimizer_order=order, loss_scale=LossScale()), MODEL)
        for order in ("eager", "fused")
    )
    assert any(line.endswith("'float32' is what torch does on CUDA alone") for line in eager)
    assert fused == (
        *[line for line in eager if not line.startswith("optimizer_")],
        "optimizer_order: torch updates op by op unless its optimizer has fused=True",
    )


def test_layers_torch_cannot_run_are_said_and_run_in_their_output_format() -> None:
    policy = preset("float8", MODEL.layer_names)
    said = losses(policy, MODEL)
    why = {
        "conv1": "torch has float8 products in linears alone",
        "fc1": "torchao wants multiples of 16, and its weight is 120 x 400",
    }
    for layer, reason in why.items():
        does = f"torch does not compute it in float8_e4m3fn ({reason})"
        assert f"layer {layer}: {does}; it runs in bfloat16" in said
    assert "'fc1': ('bfloat16', 'bfloat16', None)," in export(policy, MODEL)
    assert said[-1] == "scaling: no tensor is scaled ('current' asked)"


def test_a_function_that_would_run_in_another_format_is_said() -> None:
    policy = preset("bfloat16", MODEL.layer_names).with_layers({"relu1": uniform_layer("float16")})
    assert [
        line for line in losses(policy, MODEL) if line.startswith("layer relu1: runs in float16")
    ]


def test_a_policy_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"^layers: 'conv1'; expected one of flatten"):
        export(preset("float32", MODEL.layer_names), mlp((64, 10), input_shape=(1, 8, 8)))


def test_targets_are_found_by_name() -> None:
    assert "torch" in targets()
    assert target_named("torch").SUFFIX == ".py"
    with pytest.raises(InputError, match=r"^export target: 'caffe'; expected one of .*torch"):
        target_named("caffe")


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("field", ["grad", "wgrad"])
def test_a_gradient_torch_would_have_in_another_format_is_said(compute: str, field: str) -> None:
    """Also where the forward pass is float32; not where the op lists make all of it float32."""
    narrowed: dict[str, Any] = {field: "float16"}
    formats = dataclasses.replace(uniform_layer(compute), **narrowed)
    policy = preset("bfloat16", MODEL.layer_names)
    plain = policy.with_layers({"fc1": uniform_layer(compute)})
    policy = policy.with_layers({"fc1": formats})
    said = set(losses(policy, MODEL)) - set(losses(plain, MODEL))
    assert len(said) == 1
    assert said.pop().startswith(f"layer fc1: gradients are {compute}, not ")
    moved = tuple(op for op in policy.low_precision_ops if op in ("matmul", "bias"))
    assert len(moved) == 2
    listed = dataclasses.replace(
        policy,
        low_precision_ops=tuple(op for op in policy.low_precision_ops if op not in moved),
        fp32_ops=(*policy.fp32_ops, *moved),
    )
    assert not [line for line in losses(listed, MODEL) if "gradients are" in line]


def test_a_copy_of_the_parameters_in_a_third_format_is_said() -> None:
    policy = preset("bfloat16", MODEL.layer_names)
    for param, said in (("float32", False), ("bfloat16", False), ("float16", True)):
        layer = uniform_layer("bfloat16", param=param)
        lines = losses(policy.with_layers({"fc1": layer}), MODEL)
        expected = "layer fc1: parameters are read as float32, without a float16 copy"
        assert (expected in lines) == said


def test_a_bias_not_fused_is_said_of_every_format_below_float32() -> None:
    """31 bits are below float32; where every layer is float32 the bias is rounded once anyway."""
    for name, said in (("e8m22", True), ("bfloat16", True), ("float32", False)):
        layers = {name_: uniform_layer("float32") for name_ in MODEL.layer_names}
        policy = preset("float32", MODEL.layer_names).with_layers(
            {**layers, "fc1": uniform_layer(name)}
        )
        lines = losses(dataclasses.replace(policy, bias="rounded"), MODEL)
        assert any(line.startswith("bias: ") for line in lines) == said


def test_moves_that_round_are_said_where_that_shows() -> None:
    """Only a move between two wider readers rounds what torch does not."""
    policy = preset("bfloat16", MODEL.layer_names)
    assert "reshape" in policy.low_precision_ops
    narrow = {"flatten": uniform_layer("bfloat16")}
    wide = dict.fromkeys(MODEL.layer_names, LayerPolicy())
    said = "reshape: torch moves values in the dtype they have, without rounding them"
    assert said in losses(policy.with_layers({**wide, **narrow}), MODEL)
    assert said not in losses(policy.with_layers({"conv2": LayerPolicy()}), MODEL)


def test_a_bias_apart_from_its_product_is_said() -> None:
    policy = preset("bfloat16", MODEL.layer_names)
    moved = tuple(op for op in policy.low_precision_ops if op != "bias")
    apart = replace(policy, low_precision_ops=moved, fp32_ops=(*policy.fp32_ops, "bias"))
    assert "bias: torch adds it where its product runs" in losses(apart, MODEL)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "model", [MODEL, mlp((64, 8, 10)), transformer((1, 8, 8), 10, 16, (24,), 2)]
)
def test_what_torch_runs_it_runs_as_it_is(name: str, model: Any) -> None:
    """What is left to say of it is what the user's module and loop have to do."""
    running = runs(preset(name, model.layer_names), model)
    assert runs(running, model) == running
    said = [line for line in losses(running, model) if not line.startswith("optimizer_")]
    assert all("only if the module has a submodule" in line for line in said)
