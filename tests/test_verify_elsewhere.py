"""`verify --target keras|flax|qwix|mindspore`: what is refused, and trainings in the frameworks.

Keras, flax and qwix are run by the interpreter that runs the tests, where it has them; MindSpore by
that of `make mindspore`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.export.targets import target_named
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Linear, Pool, Residual, Skip
from policysearch.nn.models import gpt, lenet5, mlp
from policysearch.optimizers.optimizer import rules
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.train.tasks import Task
from policysearch.values import InputError
from policysearch.verify.elsewhere import SCRIPTS, _forced_scales, verify_elsewhere
from policysearch.verify.jittered_runs import emulator_runs
from policysearch.verify.page import verdict_page
from policysearch.verify.plain_net import plan_of, products_of, unlike_products
from policysearch.verify.plain_steps import clipped, moved
from policysearch.verify.verdict import Verdict

MINDSPORE = Path(__file__).parents[1] / ".venv-mindspore" / "bin" / "python"
TASK = Task(
    model="mlp", widths=(24, 16), activation="tanh", data="digits", batch_size=32, steps=10,
    tail_steps=10, learning_rate=0.1, weight_decay=1e-3,
)  # fmt: skip
MODEL = TASK.build_model(TASK.load_dataset())
SCALE = LossScale("dynamic", 2.0**24, growth_interval=3, min_scale=1.0)
MIXED = replace(preset("float16", MODEL.layer_names), loss_scale=SCALE).with_layers(
    {"fc2": uniform_layer("bfloat16"), "fc3": uniform_layer("float32")}
)


def run(policy: Policy, target: str, text: str | None = None, task: Task = TASK) -> Verdict:
    """Return the verdict of the framework, where this interpreter has it."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip("keras" if target == "keras" else "flax.nnx")
    if target == "qwix":
        pytest.importorskip("qwix")
    return verify_elsewhere(policy, task, target, sys.executable, text=text)


@pytest.mark.parametrize("target", ["keras", "flax"])
def test_a_file_trains_as_the_emulator_does(target: str) -> None:
    verdict = run(MIXED, target)
    assert verdict_page(verdict).endswith("pass")
    assert len({*verdict.scales}) > 2 and verdict.skipped.any()
    assert verdict.dtypes["fc2, backward"] == "bfloat16, bfloat16"
    assert verdict.gaps.max() < 5e-5


@pytest.mark.parametrize("low", [("fc2",), ("fc1", "fc2", "fc3")])
@pytest.mark.parametrize("rest", ["float32", "bfloat16"])
def test_fp8_by_qwix_trains_as_the_emulator_does(rest: str, low: tuple[str, ...]) -> None:
    """Beside bfloat16 gradients lie halfway between numbers of E5M2: `test_what_qwix_makes_...`."""
    policy = preset(rest, MODEL.layer_names)
    policy = policy.with_layers(dict.fromkeys(low, uniform_layer("float8_e4m3fn")))
    verdict = run(policy, "qwix", task=TASK)
    assert verdict_page(verdict).endswith("pass") and not verdict.edits
    assert verdict.gaps.max() < 5e-5
    assert verdict.dtypes["fc2, forward"] == "float8_e4m3fn"
    current = replace(verdict.policy, scaling=Scaling("current"))
    alone, *_ = emulator_runs(TASK, current, MODEL, TASK.load_dataset(), 0)
    assert (np.abs(verdict.losses - alone.losses).max() < 5e-5) == (rest == "float32")


BRANCHES = Chain(
    "branches",
    (
        Conv2d("stem.conv", 1, 4, 3, padding=1),
        Activation("stem.gelu", "gelu"),
        Pool("stem.pool", 2, "average"),
        Skip(
            "block",
            (Conv2d("block.first", 4, 6, 3, 1, 1), Activation("block.act", "sigmoid")),
            (Conv2d("block.side", 4, 6, 1, bias=False),),
        ),
        Flatten("flatten"),
        Residual("tail.add", (Linear("tail.fc", 96, 96),)),
        Linear("head", 96, 10),
    ),
    (1, 8, 8),
    10,
)


@pytest.mark.parametrize("target", ["keras", "flax"])
def test_convolutions_and_branches_are_written_as_they_are_here(target: str) -> None:
    task = replace(TASK, model=BRANCHES, widths=(), activation="relu", optimizer="adamw")
    task = replace(task, learning_rate=1e-3, clip_norm=0.5)
    verdict = run(preset("float16", BRANCHES.layer_names), target, task=task)
    assert verdict_page(verdict).endswith("pass")


EDITS = {
    "keras": ("('float32', 'float32')", "('float16', 'float32')", "fc3, forward: products of"),
    "flax": ("growth_interval': 3", "growth_interval': 4", "loss scale, interval and forced"),
}


@pytest.mark.parametrize("target", EDITS)
def test_an_edit_of_a_file_is_seen(target: str) -> None:
    text = target_named(target).export(MIXED, MODEL)
    before, after, said = EDITS[target]
    assert before in text
    verdict = run(MIXED, target, text.replace(before, after))
    assert verdict.faults and verdict.faults[0].startswith(said)


@pytest.mark.mindspore
def test_mindspore_trains_as_the_emulator_does() -> None:
    if not MINDSPORE.exists():
        pytest.skip("make mindspore makes its environment")
    mixed = MIXED.with_layers({"fc2": uniform_layer("float16")})
    verdict = verify_elsewhere(mixed, TASK, "mindspore", str(MINDSPORE))
    assert verdict_page(verdict).endswith("pass") and verdict.skipped.any()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", "adamw"])
def test_updates_are_those_of_the_optimizers(kind: str) -> None:
    """Against the formulas in float64 that the rows of the optimizers have for their tests."""
    rng = np.random.default_rng(0)
    task = replace(TASK, optimizer=kind, weight_decay=0.1, nesterov=kind == "momentum")
    plan, row, of_task = plan_of(task, MODEL, "keras"), rules()[kind], task.build_optimizer()
    value = expected = rng.standard_normal((3, 4))
    kept: Any = (np.zeros((3, 4)),) * 2
    states: Any = (np.zeros((3, 4)),) * len(row.states)
    assert row.plain is not None
    for step in (1, 2, 3):
        grad, rate = rng.standard_normal((3, 4)), 0.1 / step
        kept, value = moved(plan, value, kept, grad, rate, step)
        states, expected = row.plain(of_task, expected, states, grad, rate, step)
    assert np.allclose(value, expected, rtol=1e-12)


def test_gradients_are_clipped_by_their_norm_and_by_value() -> None:
    grads = [np.array([3.0, 0.0]), np.array([[4.0]])]
    plan = {"clip_norm": 1.0, "clip_value": None}
    made = np.concatenate([x.ravel() for x in clipped(plan, grads)])
    assert np.allclose(made, [0.6, 0.0, 0.8])
    plan = {"clip_norm": 10.0, "clip_value": 3.5}
    assert [x.tolist() for x in clipped(plan, grads)] == [[3.0, 0.0], [[3.5]]]


def test_forced_scales_show_interval_growth_and_backoff() -> None:
    assert _forced_scales(replace(SCALE, growth_interval=5)) == [
        5.0, *(2.0**24, 2.0**23, 2.0**23, 2.0**22), *(2.0**22, 2.0**23, 2.0**23, 2.0**22)
    ]  # fmt: skip


def test_products_that_differ_are_said_by_layer() -> None:
    running = target_named("keras").runs(MIXED, MODEL)
    expected = [*products_of(TASK, running, MODEL, both=False)]
    made = [list(row) for _, rows in expected for row in rows]
    assert not [*unlike_products(made, expected)]
    assert len(made) == 8 and expected[0] == ("fc1, forward", [("float16", "float16")])
    other = [*made[:2], ["float16", "float32"], *made[3:]]
    assert [*unlike_products(other, expected)] == [
        "fc3, forward: products of float16 into float32; expected float32 into float32"
    ]
    assert [*unlike_products(made[1:], expected)] == ["products of a step: 7; expected 8"]


REFUSED = [
    ({"optimizer": "lion"}, "verify in keras: optimizer: 'lion'; expected one of"),
    ({"accumulation_steps": 2}, "verify in keras: task.accumulation_steps: 2; expected 1"),
    ({"loss": "mean_squared_error"}, "verify in keras: loss mean_squared_error; expected"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_recipes_that_are_not_written_there_are_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^{said}"):
        plan_of(replace(TASK, **change), MODEL, "keras")


def test_nets_that_are_not_written_there_are_one_line() -> None:
    for model in (gpt((8,), 10, 16, (32,), 2), replace(mlp((8, 4)), whole=True)):
        with pytest.raises(InputError, match=r"^verify in flax: the net .*; expected a built-in"):
            plan_of(TASK, model, "flax")
    assert plan_of(TASK, lenet5(), "flax")["chain"][0]["type"] == "Conv2d"


COMMAND = ["verify", "preset:float16", "--study", "studies/mlp-digits.toml"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "keras"], "--target keras without --python; expected it for keras"),
        (["--python", sys.executable], "--target torch with --python; expected it for keras"),
        (["--target", "apex"], "verify target: 'apex'; expected one of"),
        (["--target", "flax", "--python", "/no/such"], "--python /no/such: No such file"),
        (
            ["--target", "flax", "--python", sys.executable, "--place", "cuda"],
            "--place cuda: with --python; expected cpu",
        ),
    ],
)
def test_the_command_says_what_it_needs(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("target", SCRIPTS)
def test_an_interpreter_without_the_framework_is_one_line(target: str, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", symlinks=True, system_site_packages=False)
    python = tmp_path / "bare" / "bin" / "python"
    with pytest.raises(InputError, match=f"has no .*; expected --python of .* with {target}$"):
        verify_elsewhere(preset("float16", MODEL.layer_names), TASK, target, str(python))
