"""The factory for Transformer Engine: which quantizer it asks for, with stubs in its place."""

from __future__ import annotations

import itertools
import random
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import pytest

from policysearch.export import te_debug
from policysearch.export import transformer_engine as target
from policysearch.nn.models import gpt, mlp
from policysearch.policy.normal_forms import in_full, normal
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import TE_FACTORIES, layer_named, preset
from policysearch.policy.product_words import ROLES, with_words
from policysearch.policy.products import Operand, is_narrow

MODEL = gpt((8,), 32, 32, (64,) * 2, 2)
LINEARS = [name for name, kind in MODEL.layer_types.items() if kind == "Linear"]
PATHS = {
    "transformer_engine.pytorch.tensor.identity_tensor": ["IdentityQuantizer"],
    "transformer_engine.pytorch.tensor.hybrid_tensor": ["HybridQuantizer"],
    "transformer_engine.pytorch.tensor.nvfp4_tensor": ["NVFP4Quantizer"],
    "transformer_engine.pytorch.tensor.mxfp8_tensor": ["MXFP8Quantizer"],
    "transformer_engine.pytorch.tensor.float8_tensor": ["Float8CurrentScalingQuantizer"],
    "transformer_engine.pytorch.tensor.float8_blockwise_tensor": ["Float8BlockQuantizer"],
    "transformer_engine.pytorch.quantization": ["DelayedScalingRequest"],
}


@dataclass
class Made:
    """What a stub was called with."""

    kind: str
    given: dict[str, Any]


@dataclass
class Role:
    module_type: str
    tensor_type: str
    name: str = ""


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put modules in the place of Transformer Engine that note what is asked of them."""

    def stub(kind: str) -> Any:
        return lambda **given: Made(kind, given)

    for path, kinds in PATHS.items():
        module = types.ModuleType(path)
        for kind in kinds:
            setattr(module, kind, stub(kind))
        monkeypatch.setitem(sys.modules, path, module)
    names = ("kFloat4E2M1", "kFloat8E4M3", "kFloat8E5M2")
    constants: Any = types.ModuleType("constants")
    constants.DType = types.SimpleNamespace(**{name: name for name in names})
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.constants", constants)
    recipe: Any = types.ModuleType("recipe")
    recipe.Format = types.SimpleNamespace(HYBRID="hybrid", E4M3="e4m3")
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipe)


def file_of(policy: Policy) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "file"}
    exec(compile(target.export(policy, MODEL), "file.py", "exec"), space)
    return space


def representation(made: Made, direction: str) -> Made:
    """Return the quantizer of one direction of what a factory gives."""
    if made.kind != "HybridQuantizer":
        return made
    found: Made = made.given[f"{direction}_quantizer"]
    return found


DTYPES = {"float8_e4m3fn": "kFloat8E4M3", "float8_e5m2": "kFloat8E5M2"}


def check(operand: Operand, made: Made, tensor: str, column: bool) -> None:
    """Assert that a quantizer makes what the policy says of an operand."""
    row, given = operand.scaling, made.given
    if row is None or not is_narrow(operand.format):
        assert made.kind == "IdentityQuantizer"
        return
    if row.recipe == "nvfp4":
        assert made.kind == "NVFP4Quantizer"
        assert given["with_rht"] == (row.hadamard and column and tensor != "weight")
        assert given["stochastic_rounding"] == (tensor == "grad_output")
        squares = row.weights == "squares" and tensor == "weight"
        assert given["with_2d_quantization"] == squares
        assert given["row_scaled_nvfp4"] == (row.tensor == "rows" and tensor == "input")
        return
    kinds = {"mx_rceil": "MXFP8Quantizer", "blocks": "Float8BlockQuantizer"}
    assert made.kind == kinds.get(row.recipe, "Float8CurrentScalingQuantizer")
    assert given["fp8_dtype"] == DTYPES[operand.format]
    if row.recipe != "mx_rceil":
        assert given["force_pow_2_scales"] == row.power_of_two
    if row.recipe == "blocks":
        squares = row.weights == "squares" and tensor == "weight"
        assert given["block_scaling_dim"] == (2 if squares else 1)


ANY = ("bfloat16", "te.current", "te.mxfp8", "te.nvfp4", "te.float8_block")
OWN = (*ANY, *(row.name for row in TE_FACTORIES))
WORDS = ("same", "wgrad=bfloat16", "fprop=bfloat16", "dgrad=bfloat16 backward=forward")


def drawn(seed: int) -> Policy:
    rng = random.Random(seed)
    layers = {name: with_words(layer_named(rng.choice(OWN)), rng.choice(WORDS)) for name in LINEARS}
    return preset("te.current", MODEL.layer_names).with_layers(layers, "drawn")


def test_every_role_and_direction_of_drawn_policies_is_right() -> None:
    checked, hybrids = 0, 0
    for seed in range(30):
        policy = drawn(seed)
        file, running = file_of(policy), target.runs(policy, MODEL)
        for name, tensor in itertools.product(LINEARS, ("input", "weight", "grad_output")):
            asked = in_full(policy, name)
            made = file["qfactory"](Role("linear", tensor, name))
            recipe = file["LAYERS"].get(name)
            if recipe is not None:
                again = file[recipe](Role("grouped_linear", tensor))
                assert again.kind == made.kind  # by role alone, as Megatron-LM calls it
            places = zip(target.READS[tensor], ("rowwise", "columnwise"), strict=True)
            for (role, place), direction in places:
                operand: Operand = getattr(asked[role], place)
                check(operand, representation(made, direction), tensor, direction != "rowwise")
                if operand.source == "forward":
                    assert made.given["columnwise_source"] == "rowwise_dequantized"
                elif made.kind == "HybridQuantizer" and direction == "columnwise":
                    assert made.given["columnwise_source"] == "original"
                checked += 1
            hybrids += made.kind == "HybridQuantizer"
        said = [line for line in target.losses(policy, MODEL) if line.startswith("layer")]
        assert {line.split()[1].rstrip(":") for line in said}.isdisjoint(LINEARS)
        assert target.runs(running, MODEL) == running
    assert checked == 30 * len(LINEARS) * 6 and hybrids > 150


def test_the_factories_of_the_zoo_ask_for_what_they_do_there() -> None:
    """`mxfp8_fwd_nvfp4_bwd_factory`, quantizer by quantizer, as its source has it."""
    file = file_of(preset("te.mxfp8_fwd_nvfp4_bwd", MODEL.layer_names))
    made = {t: file["recipe_1"](Role("linear", t)) for t in ("input", "weight", "grad_output")}
    assert made["input"].given["columnwise_source"] == "original"
    assert made["weight"].given["columnwise_source"] == "rowwise_dequantized"
    assert made["input"].given["columnwise_quantizer"].given["with_rht"]
    assert not made["weight"].given["columnwise_quantizer"].given["with_rht"]
    grads = made["grad_output"].given
    assert not grads["rowwise_quantizer"].given["with_rht"]
    assert grads["columnwise_quantizer"].given["with_rht"]
    assert grads["rowwise_quantizer"].given["stochastic_rounding"]


def test_delayed_scaling_is_a_request() -> None:
    file = file_of(preset("te.delayed", MODEL.layer_names))
    made = file["qfactory"](Role("linear", "grad_output", LINEARS[0]))
    expected = {"fp8_format": "hybrid", "margin": 0, "amax_history_len": 1024}
    assert made == Made("DelayedScalingRequest", {**expected, "amax_compute_algo": "max"})


def test_slots_without_a_role_and_names_without_a_linear() -> None:
    file = file_of(preset("te.mxfp8", MODEL.layer_names))
    assert file["qfactory"](None).kind == "IdentityQuantizer"
    assert file["recipe_1"](None).kind == "IdentityQuantizer"
    assert file["qfactory"](Role("dpa", "qkv", "x")).kind == "IdentityQuantizer"
    with pytest.raises(ValueError, match="expected name="):
        file["qfactory"](Role("linear", "input"))


@pytest.mark.parametrize("name", ["ocp.mxfp8", "torchao.rowwise", "float8"])
def test_what_it_has_no_quantizer_for_is_a_loss(name: str) -> None:
    policy = preset(name, MODEL.layer_names)
    running = target.runs(policy, MODEL)
    there = name == "float8"
    low = {n: row for n, row in running.layers if row != uniform_layer("bfloat16")}
    assert set(low) == (set(LINEARS) if there else set())
    lost = [line for line in target.losses(policy, MODEL) if f"layer {LINEARS[0]}:" in line]
    assert bool(lost) != there
    unscaled = replace(policy, scaling=type(policy.scaling)())
    assert target.runs(unscaled, MODEL).layer(LINEARS[0]) == uniform_layer("bfloat16")
    assert normal(running) == running


def is_taken(recipe: str, low: set[str], outputs: int, inputs: int) -> bool:
    """Whether Transformer Engine takes a linear, product by product, as its sources say.

    Of rows there are 64. `assert_dim_for_fp8_exec` looks at input and weight, cuBLAS at the
    leading dimension of both operands, quantizers of blocks at both sides of what they are given.
    """
    rows = 64
    shapes = {"input": (rows, inputs), "weight": (outputs, inputs), "grad": (rows, outputs)}
    taken = all(a % 8 == 0 and b % 16 == 0 for a, b in (shapes["input"], shapes["weight"]))
    reads = {"fprop": ("input", "weight"), "dgrad": ("grad", "weight"), "wgrad": ("grad", "input")}
    for role in low:
        summed = {"fprop": inputs, "dgrad": outputs, "wgrad": rows}[role]
        sides = [summed] if recipe == "te.current" else [n for x in reads[role] for n in shapes[x]]
        taken &= not any(side % (32 if recipe == "te.mxfp8" else 16) for side in sides)
    return taken


@pytest.mark.parametrize("recipe", ["te.current", "te.mxfp8", "te.nvfp4"])
@pytest.mark.parametrize("module", [target, te_debug])
def test_linears_of_other_sides_than_it_takes_stay_wide_and_are_said(
    recipe: str, module: Any
) -> None:
    for outputs, inputs in itertools.product((10, 16, 24, 32, 40, 64), (8, 16, 48, 60, 64)):
        net = mlp((inputs, outputs))
        for wide in ((), *((role,) for role in ROLES), ROLES[1:]):
            policy = preset(recipe, net.layer_names)
            words = " ".join(f"{role}=bfloat16" for role in wide) or "same"
            policy = policy.with_layers({"fc1": with_words(policy.layer("fc1"), words)})
            ran = in_full(module.runs(policy, net), "fc1")
            low = {
                role for role, row in ran.items() if any(is_narrow(o.format) for o in row.operands)
            }
            taken = is_taken(recipe, {*ROLES} - {*wide}, outputs, inputs)
            assert low == (({*ROLES} - {*wide}) if taken else set())
            why = "Transformer Engine wants multiples of "
            said = [x for x in module.losses(policy, net) if why in x]
            assert len(said) == (not taken) and all(f"{outputs} x {inputs}" in x for x in said)


def test_a_file_that_gives_such_a_linear_a_recipe_or_autocast_says_that_it_raises() -> None:
    fits, other = mlp((64, 32, 48)), mlp((64, 32, 40, 10))
    text = target.export(preset("te.current", fits.layer_names), fits)
    assert not target.read(text, fits, "file").traps and "torch.nn.Linear" not in text
    said = target.read(text, other, "file").traps
    wants = "Transformer Engine wants multiples of {}, and its weight is {}: a linear of"
    assert said[0].startswith("fc2: " + wants.format("16 x 16", "40 x 32"))
    assert said[1].startswith("fc3: " + wants.format("8 x 16", "10 x 40")) and len(said) == 2
    own = target.export(preset("te.current", other.layer_names), other)
    assert "# fc3; let each be a torch.nn.Linear." in own
    assert target.read(own, other, "file").traps == said[1:]
    debug = te_debug.export(preset("te.current", other.layer_names), other)
    assert te_debug.read(debug, other, "file").traps == said[1:]
    assert "name_regex_pattern: '^(fc2|fc3)$'" in debug
