"""Training scripts as they are: autocast, GradScaler and torchao's conversion, read by parsing."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.export.filters import Unread, filter_of
from policysearch.export.targets import read_file
from policysearch.nn.model import Model
from policysearch.nn.models import mlp
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.values import InputError

MODEL = mlp((64, 48, 40, 10))

FLOAT8 = """
import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
raise SystemExit("nothing here is run")
SKIPPED = ["fc3", "head"]

def wanted(module, fqn):
    "Which linears."
    if any(name in fqn for name in SKIPPED):
        return False
    return isinstance(module, torch.nn.Linear) and module.in_features % 16 == 0

config = Float8LinearConfig.from_recipe_name("rowwise")
convert_to_float8_training(net, config=config, module_filter_fn=wanted)
with torch.autocast("cuda", dtype=torch.bfloat16):
    loss = net(x)
"""


def computed(text: str, target: str = "torch") -> dict[str, str]:
    return {n: row.compute for n, row in read_file(target, text, MODEL, "train.py").policy.layers}


@pytest.mark.parametrize("target", ["torch", "torchao"])
def test_converted_linears_are_those_of_the_filter(target: str) -> None:
    reading = read_file(target, FLOAT8, MODEL, "train.py")
    rows = computed(FLOAT8, target)
    assert rows["fc1"] == rows["fc2"] == "float8_e4m3fn"
    assert rows["fc3"] == rows["relu1"] == "bfloat16" and reading.unread == ()
    assert reading.policy.layer("fc1").grad == "float8_e4m3fn"  # rowwise
    assert reading.policy.scaling.recipe == "rowwise" and reading.policy.scaling.power_of_two
    rules = {row.rule for row in reading.given if row.layer in ("fc1", "fc2")}
    assert rules == {"convert_to_float8_training, line 14"}
    every = computed(FLOAT8.replace(", module_filter_fn=wanted", ""), target)
    assert every["fc3"] == "float8_e4m3fn"


SCALER = 'scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=50)'
AUTOCAST = f"""
{SCALER}
with torch.autocast(device_type="cuda", dtype=torch.float16):
    pass
"""


def test_autocast_and_a_scaler_are_the_preset_with_its_numbers() -> None:
    reading = read_file("torch", AUTOCAST, MODEL, "train.py")
    wanted = preset("torch.autocast.float16", MODEL.layer_names)
    assert reading.policy.layers == wanted.layers and reading.unread == ()
    assert reading.policy.low_precision_ops == wanted.low_precision_ops
    assert reading.policy.loss_scale == LossScale("dynamic", 1024.0, growth_interval=50)
    traps = read_file("torch", AUTOCAST.replace(SCALER, ""), MODEL, "train.py").traps
    assert traps == ("float16 and no loss scale: gradients underflow",)
    assert {*computed(AUTOCAST.replace("torch.float16", "kind")).values()} == {"float32"}
    named = AUTOCAST.replace("torch.float16", "kind").replace(SCALER, "kind = torch.bfloat16")
    assert {*computed(named).values()} == {"bfloat16"}
    off = "with torch.autocast('cuda', enabled=False): pass"
    assert {*computed(off).values()} == {"float32"}
    assert {*computed("with torch.autocast('cpu'): pass").values()} == {"bfloat16"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("module_filter_fn=wanted", "module_filter_fn=imported", "imported is not in the file"),
        ("any(name in fqn for name in SKIPPED)", "chosen(fqn)", "chosen(fqn)"),
        ("config=config", "config=Float8LinearConfig(emulate=x)", "config Float8LinearConfig"),
        ("dtype=torch.bfloat16", "dtype=args.kind()", "dtype of torch.autocast"),
        ("    loss = net(x)", "    loss = net(x)\nnet.half()", "net.half() stores"),
    ],
)
def test_what_is_not_followed_is_said(old: str, new: str, said: str) -> None:
    assert old in FLOAT8
    reading = read_file("torchao", FLOAT8.replace(old, new), MODEL, "train.py")
    assert any(said in line for line in reading.unread), reading.unread
    assert all(line.startswith("line ") for line in reading.unread)


FILTERS = (
    "lambda m, n: n != 'fc3'",
    "lambda m, n: isinstance(m, nn.Linear) and not n.endswith(('2', '3'))",
    "lambda m, n: m.in_features % 16 == 0 and m.out_features % 16 == 0",
    "lambda m, n: n.split('c')[1] in ('1', '3') or m.in_features * 2 > 90",
    "lambda mod, fqn: all([c not in fqn for c in ['1', 'x']])",
    "lambda m, n: 16 <= m.out_features < 48",
    "lambda m, n: not isinstance(m, (nn.Conv2d, nn.Embedding))",
)


@pytest.mark.torch
@pytest.mark.parametrize("text", FILTERS)
def test_filters_take_what_python_takes(text: str) -> None:
    nn = pytest.importorskip("torch").nn
    oracle = eval(text, {"nn": nn})
    taken = filter_of(ast.parse(text, mode="eval").body, ast.Module([], []), {})
    for name, n_in, n_out in (("fc1", 64, 48), ("fc2", 48, 40), ("fc3", 40, 10), ("c1", 16, 16)):
        assert taken(name, n_out, n_in) == bool(oracle(nn.Linear(n_in, n_out), name)), name


@pytest.mark.parametrize(
    "text",
    [
        "lambda m, n: n[99] == 'x'",
        "lambda m, n: m.weight",
        "lambda n: True",
        "lambda m, n: 'x' * 10 == n",
        "lambda m, n: open('x').read()",
    ],
)
def test_what_raises_in_a_filter_and_what_would_run_code_is_not_read(text: str) -> None:
    taken = filter_of(ast.parse(text, mode="eval").body, ast.Module([], []), {})
    with pytest.raises(Unread):
        taken("fc1", 2, 2)


NOTING = """
def wanted(m, n):
    if m.out_features % 16:
        skipped.append(n)
        print(n)
        return False
    return RETURNED
"""


def test_a_filter_may_note_what_it_skips_but_not_read_it() -> None:
    for returned in ("True", "n not in skipped"):
        tree = ast.parse(NOTING.replace("RETURNED", returned))
        taken = filter_of(ast.Name("wanted"), tree, {"skipped": []})
        assert not taken("fc3", 10, 40) and taken("fc1", 48, 64)
    logged = NOTING.replace("    if", "    skipped.append(n)\n    if").replace("RETURNED", returned)
    with pytest.raises(Unread, match="skipped"):
        filter_of(ast.Name("wanted"), ast.parse(logged), {"skipped": []})("fc1", 48, 64)


def test_inspect_says_what_was_found_and_what_was_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(AUTOCAST.replace("2.0**10", "args.scale"))
    assert main(["inspect", str(file), "--model", "lenet5"]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()]
    assert ["conv1", "conv1", "float16", "autocast,", "line", "3"] in rows
    assert "not read: line 2: init_scale of torch.amp.GradScaler(" in said
    assert "a dynamic loss scale, first 65536" in said
    file.write_text("print('hello')\n")
    for target in ("torch", "torchao"):
        assert main(["inspect", str(file), "--model", "lenet5", "--target", target]) == 2
        assert "autocast" in capsys.readouterr().err


def whole(target: str, text: str) -> tuple[str, Policy, tuple[str, ...]]:
    """Return what every layer computes in, the policy, and what was not read."""
    reading = read_file(target, text, MODEL, "train.py")
    (computed,) = {row.compute for _, row in reading.policy.layers}
    return computed, reading.policy, reading.unread


WORDS = (
    ("keras", "p = Policy('mixed_bfloat16')\nmixed_precision.set_global_policy(p)", "bfloat16"),
    ("keras", "keras.config.set_dtype_policy('float32')", "float32"),
    ("keras", "keras.config.set_dtype_policy('mixed_float16')", "float16"),
    ("mindspore", "net = amp.auto_mixed_precision(net, 'O3')", "float16"),
    ("mindspore", "model = Model(net, loss, opt, amp_level='O0')", "float32"),
    ("apex", "amp.initialize(model, optimizer)", "float16"),
    ("fsdp2", "p = MixedPrecisionPolicy(torch.float16)", "float16"),
)


@pytest.mark.parametrize(("target", "text", "dtype"), WORDS)
def test_one_call_for_the_whole_run_is_read(target: str, text: str, dtype: str) -> None:
    computed, policy, unread = whole(target, text)
    assert (computed, unread) == (dtype, ())
    scaled = dtype == "float16" and target in ("keras", "apex")  # MindSpore's O3 has none
    assert (policy.loss_scale.kind == "dynamic") == scaled
    in_keras = policy.loss_scale.rule == "keras.LossScaleOptimizer"
    assert in_keras == (scaled and target == "keras")


def test_what_a_whole_run_says_beside_its_dtype() -> None:
    text = "amp.register_float_function(torch, 'tanh')\namp.register_half_function(x, 'mine')\n"
    _, policy, unread = whole("apex", f"{text}amp.initialize(m, o, opt_level='O1', loss_scale=8)")
    assert "tanh" in policy.fp32_ops and policy.loss_scale == LossScale("fixed", 8.0)
    assert unread == ("line 2: mine: no op here has this name",)
    reduced = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)"
    assert whole("fsdp2", reduced)[1].all_reduce == "bfloat16"
    made = whole("fsdp2", f"{reduced}\nMixedPrecisionPolicy(param_dtype=kind())\n")[2]
    assert made == ("line 2: param_dtype of MixedPrecisionPolicy(param_dtype=kind())",)
    two = whole("keras", "set_dtype_policy('mixed_float16')\nset_dtype_policy('float32')")
    assert two[0] == "float16" and "beside line 1" in two[2][0]
    with pytest.raises(InputError, match=r"^train.py: no table LAYERS, and no call of initialize"):
        whole("apex", "print('hello')")


ACCELERATE = """
from accelerate import Accelerator
more = [GradScalerKwargs(init_scale=8.0)]
accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=more)
"""


def test_the_precision_of_accelerate_is_read() -> None:
    computed, policy, unread = whole("torch", ACCELERATE)
    assert (computed, policy.loss_scale, unread) == ("float16", LossScale("dynamic", 8.0), ())
    bare = ACCELERATE.replace("GradScalerKwargs(init_scale=8.0)", "")
    assert whole("torch", bare)[1].loss_scale == LossScale("dynamic", 2.0**16)
    assert not whole("torch", bare.replace("fp16", "no"))[2]
    assert "mixed_precision of Accelerator(" in whole("torch", bare.replace('"fp16"', "x"))[2][0]
    ends = computed_by("Accelerator(mixed_precision='fp8', kwargs_handlers=[AORecipeKwargs()])")
    wide = mlp((64, 48, 32, 32, 16))
    low = {n for n, row in ends(wide).layers if row.compute == "float8_e4m3fn"}
    assert low == {"fc2", "fc3"}  # all but the first and the last


def computed_by(text: str) -> Callable[[Model], Policy]:
    return lambda model: read_file("torchao", text, model, "train.py").policy


@pytest.mark.parametrize(
    "text", ["net.to('cuda', torch.bfloat16)", "X.from_config(c, dtype=t.half)"]
)
def test_what_is_stored_in_16_bits_is_said(text: str) -> None:
    unread = read_file("torch", f"{text}\n{AUTOCAST}", MODEL, "train.py").unread
    assert len(unread) == 1 and unread[0].startswith("line 1: ") and "stores" in unread[0]
