"""Exported policies trained in torch beside the emulator, and what the comparison finds."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.export.targets import target_named
from policysearch.nn.models import lenet5
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError
from policysearch.verify import jittered_runs
from policysearch.verify import verdict as verdicts
from policysearch.verify.forced_steps import (
    FORCED_DRAWS,
    LEAST_MOVE,
    ForcedSteps,
    _alone,
    forced_steps,
)
from policysearch.verify.jittered_runs import DRAWS, STAGES, emulator_runs, gaps, reference_of
from policysearch.verify.page import verdict_page
from policysearch.verify.verdict import EARLY_GAP, EARLY_STEPS, LATE_GAP, Verdict, verify

STUDY = Path(__file__).parents[1] / "studies" / "mlp-digits.toml"
MLP = Task(model="mlp", data="digits", widths=(32, 32), batch_size=32)


@pytest.mark.parametrize(("package", "extra"), [("torch", "torch"), ("torchao.float8", "float8")])
def test_a_package_that_is_not_there_is_named_with_its_extra(
    package: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"Traceback\nModuleNotFoundError: No module named {package!r}\n"
    done = subprocess.CompletedProcess([], 1, "", said)
    with mock.patch.object(subprocess, "run", return_value=done):
        assert main(["verify", "preset:bfloat16", "--study", str(STUDY), "--steps", "2"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    name = package.partition(".")[0]
    wanted = f"verify in torch: {name} is not installed; expected pip install"
    assert line == f"policysearch: {wanted} 'policysearch[{extra}]'"


@pytest.fixture(scope="module")
def mlp_verdict() -> Verdict:
    pytest.importorskip("torch")
    names = ("flatten", "fc1", "relu1", "fc2", "relu2", "fc3")
    scale = LossScale("dynamic", 2.0**24, growth_interval=20)
    policy = replace(preset("torch.autocast.float16", names), loss_scale=scale)
    return verify(policy, MLP, steps=20)


@pytest.mark.torch
def test_a_policy_trains_in_torch_as_here(mlp_verdict: Verdict) -> None:
    verdict = mlp_verdict
    assert verdict.faults == () and len(verdict.losses) == verdict.compared == 20
    assert verdict.gaps.max() > 0.0  # another machine's arithmetic, not a copy of the numbers
    assert verdict.losses[-1] < verdict.losses[0]
    assert np.array_equal(verdict.scales, verdict.here.scales)
    assert np.array_equal(verdict.skipped, verdict.here.skipped) and verdict.skipped.sum() > 3
    assert verdict.dtypes["fc1"] == "float16" and verdict.dtypes[""] == "float32"
    assert verdict.same_keys and verdict.state_keys == 6
    page = verdict_page(verdict)
    assert page.endswith("pass") and "1.67772e+07, skipped" in page
    assert f"{verdict.losses[0]:.7f}" in page and "fc1: float16" in page
    assert verdict.unlike == () and "otherwise" not in page
    low = verdict.policy.with_layers({"fc1": uniform_layer("float8_e4m3fn")})
    narrow = verdict_page(replace(verdict, policy=low))
    assert ", of operands in" not in page
    assert [line for line in narrow.splitlines() if line.endswith(", of operands in float8_e4m3fn")]
    other = verdict_page(replace(verdict, unlike=("layer fc1: it does not",)))
    assert "\ntorch does otherwise: layer fc1: it does not\n" in other


@pytest.mark.torch
def test_a_bias_without_a_product_runs_where_biases_do() -> None:
    """What adds the positions is an addition in torch."""
    pytest.importorskip("torch")
    task = Task(model="transformer", data="digits", widths=(16, 32), batch_size=8)
    model = task.build_model(task.load_dataset())
    policy = preset("torch.autocast.float16", model.layer_names)
    verdict = verify(replace(policy, loss_scale=LossScale("fixed", 64.0)), task, steps=4)
    assert verdict.formats["position"] == verdict.dtypes["position"] == "float16"
    assert verdict.formats["block1.add1"] == "float16" and verdict.faults == ()


def with_losses(verdict: Verdict, step: int, by: float) -> Verdict:
    losses = verdict.losses.copy()
    losses[step] += by
    return replace(verdict, losses=losses)


def with_own(verdict: Verdict, **changes: Any) -> Verdict:
    return replace(verdict, own=replace(verdict.own, **changes))


@pytest.mark.torch
def test_what_does_not_agree_is_a_fault(mlp_verdict: Verdict) -> None:
    own_gaps = np.where(np.arange(20) < EARLY_STEPS, 0.0, 1e-3)
    verdict = with_own(mlp_verdict, gaps=own_gaps)
    late = with_losses(verdict, 15, 1.9e-3)
    assert late.faults == () and with_losses(verdict, 15, 2.2e-3).faults != ()
    assert with_losses(verdict, 9, 2 * EARLY_GAP).faults[0].startswith("step 9: losses")
    quiet = with_own(verdict, gaps=np.zeros(20))
    assert quiet.allowed[-1] == LATE_GAP and quiet.allowed[0] == EARLY_GAP
    assert with_losses(verdict, 3, math.nan).faults != ()
    parted = with_own(replace(late, compared=12), partings=np.repeat([12, 13], [3, 5]))
    assert parted.faults == (
        "step 12: other loss scales, no gradient near overflow "
        "(3 of 8 jittered trainings part from the emulator by then)",
    )
    assert parted.undecided == ()
    near = replace(parted, borderline=True)
    assert near.faults == () and "within 1% of overflow" in verdict_page(near)
    assert set(verdict.formats) == {"flatten", "fc1", "relu1", "fc2", "relu2", "fc3"}
    wide = replace(verdict, formats={"fc1": "float32"})
    assert wide.faults == ("fc1: results are float16; expected float32",)
    other = replace(verdict, same_keys=False)
    assert "FAIL: state_dict" in verdict_page(other)


@pytest.mark.torch
def test_a_training_that_parts_from_itself_decides_nothing(
    mlp_verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early losses and scales that part where those of the emulator do: no fault, and no pass."""
    assert mlp_verdict.undecided == () and len(mlp_verdict.own.gaps) == 20
    verdict = with_own(mlp_verdict, gaps=np.full(20, 1e-3))
    early = with_losses(verdict, 4, 1.9e-3)
    assert early.faults == () and early.undecided[0].startswith("step 4: losses 1.9e-03 apart")
    assert "pass" not in verdict_page(early) and "undecided: step 4" in verdict_page(early)
    assert with_losses(verdict, 4, 2.2e-3).faults != ()
    late = with_losses(early, 15, 3e-3)
    assert late.faults[0].startswith("step 15") and late.undecided == ()
    quiet = with_own(early, gaps=np.full(20, 0.1 * EARLY_GAP))
    assert quiet.faults != () and quiet.undecided == ()
    for draws, decided in ((4, True), (5, False)):  # most have other scales where losses part
        parted = with_own(late, partings=np.repeat([15, 20], [draws, DRAWS - draws]))
        assert bool(parted.faults) == decided and bool(parted.undecided) != decided
    seen = iter((mlp_verdict, early, late))
    monkeypatch.setattr(api, "verify_policy", lambda *_, **__: next(seen))
    command = ["verify", "preset:bfloat16", "--study", str(STUDY)]
    codes: list[object] = [main(command)]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(command)
        codes.append(ended.value.code)
    assert codes == [0, 3, 1]
    for draws, decided in ((4, True), (5, False)):
        partings = np.repeat([12, 13], [draws, DRAWS - draws])
        parted = with_own(replace(mlp_verdict, compared=12), partings=partings)
        assert bool(parted.faults) == decided and bool(parted.undecided) != decided


@pytest.mark.torch
def test_a_training_is_compared_with_a_draw_that_has_its_scales(mlp_verdict: Verdict) -> None:
    """Four draws skip step 12, two step 14, two none, as the emulator itself."""
    run = mlp_verdict.here

    def moved(step: int, by: float) -> Run:
        scales, skipped, losses = run.scales.copy(), run.skipped.copy(), run.losses + by
        scales[step + 1 :] /= 2.0
        skipped[step : step + 1] = True
        losses[step + 1 :] += 0.25
        return replace(run, losses=losses, scales=scales, skipped=skipped)

    draws = [moved(step, 1e-5 * n) for n, step in enumerate((20, 12, 12, 14, 12, 14, 12, 20))]
    alike = reference_of(run, draws, run.scales, run.skipped)
    assert alike.run is run and alike.followed_from == 20
    assert alike.partings.tolist() == [20, 12, 12, 14, 12, 14, 12, 20]
    assert alike.gaps == pytest.approx(7e-5)  # by the last draw, not by those that parted
    other = reference_of(run, draws, draws[3].scales, draws[3].skipped)
    assert other.followed_from == 14 and np.array_equal(other.run.skipped, draws[3].skipped)
    assert np.array_equal(other.run.losses[:14], run.losses[:14])
    assert np.array_equal(other.run.losses[14:], draws[3].losses[14:])
    assert other.partings.tolist() == [14, 12, 12, 20, 12, 20, 12, 14]
    assert other.gaps[:14] == pytest.approx(7e-5) and other.gaps[15:] == pytest.approx(2e-5)
    page = verdict_page(replace(mlp_verdict, own=other))
    assert "from step 14 on compared with" in page and "2 of the 8 draws have those" in page
    assert "(the largest of 8 draws; 6 only until" in page and "from step 12)" in page
    nobody = moved(16, 0.0)
    alone = reference_of(run, draws, nobody.scales, nobody.skipped)
    assert alone.run is run and alone.followed_from == 20
    ended = [
        replace(x, losses=x.losses[:16], scales=x.scales[:16], skipped=x.skipped[:16])
        for x in draws
    ]
    cut = reference_of(run, ended, draws[3].scales, draws[3].skipped)
    assert cut.run is run and cut.partings.max() == 16 and np.all(cut.gaps[16:] == 0.0)


def test_losses_that_are_both_not_finite_agree() -> None:
    ours, theirs = np.array([1.0, math.nan, math.inf, 1.0]), np.array([1.5, math.inf, math.nan, 1])
    assert gaps(ours, theirs).tolist() == [0.5, 0.0, 0.0, 0.0]
    assert gaps(ours, np.array([1.0, 1.0, math.inf, 1.0])).tolist() == [0.0, math.inf, 0.0, 0.0]


@pytest.mark.torch
def test_losses_that_both_lose_are_undecided(mlp_verdict: Verdict) -> None:
    """A policy that destroys the training in both places has not been shown to hold."""
    steps = np.arange(len(mlp_verdict.losses))
    lost = np.where(steps < 15, mlp_verdict.losses, math.nan)
    both = with_own(
        replace(mlp_verdict, losses=lost), run=replace(mlp_verdict.here, losses=lost.copy())
    )
    assert mlp_verdict.undecided == () and both.faults == ()
    said = "step 15: no loss is finite from here on, neither here nor in torch"
    assert both.undecided == (said,)
    # an overflow that is skipped leaves finite losses behind it
    once = np.where(steps == 15, math.inf, mlp_verdict.losses)
    skipped = with_own(
        replace(mlp_verdict, losses=once), run=replace(mlp_verdict.here, losses=once.copy())
    )
    assert skipped.undecided == ()


@pytest.mark.torch
def test_a_file_that_does_something_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    target = target_named("torch")

    class Wrong:
        """Exports another policy than it says it runs."""

        runs = staticmethod(target.runs)

        @staticmethod
        def losses(policy: Policy, model: Any) -> tuple[str, ...]:
            return (f"{model.name}: {policy.loss_scale.kind}",)

        @staticmethod
        def export(policy: Policy, model: Any) -> str:
            return target.export(preset("bfloat16", model.layer_names), model)

    monkeypatch.setattr(verdicts, "target_named", lambda name: Wrong)
    names = ("flatten", "fc1", "relu1", "fc2", "relu2", "fc3")
    verdict = verify(preset("torch.autocast.float16", names), MLP, steps=10)
    assert verdict.faults and verdict.unlike == ("mlp: dynamic",)


@pytest.mark.torch
def test_a_gradient_near_overflow_is_found() -> None:
    """The scale that just does not overflow, and half of it."""
    task = MLP.with_steps(4)
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    policy = preset("torch.autocast.float16", model.layer_names)

    def borderline(scale: float) -> bool:
        given = replace(policy, loss_scale=LossScale("fixed", scale))
        return jittered_runs.is_borderline(task, given, model, dataset, 0, 1)

    low, high = 2.0**10, 2.0**30
    while high / low > 1.001:  # between them overflow begins
        middle = math.sqrt(low * high)
        given = replace(policy, loss_scale=LossScale("fixed", middle))
        run = train(task, given, 0, dataset=dataset, model=model)
        low, high = (low, middle) if run.skipped[1] else (middle, high)
    assert borderline(low) and borderline(high)
    assert not borderline(low / 2) and not borderline(high * 2)


def test_other_batches_can_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that averages over roundings, and one larger than the data are."""
    seen: list[int] = []
    monkeypatch.setattr(api, "verify", lambda _, task, **__: seen.append(task.batch_size))
    spec = api.load_study(STUDY)
    policy = preset("float32", spec.task.build_model(spec.task.load_dataset()).layer_names)
    for batch_size in (256, None):
        api.verify_policy(policy, spec, batch_size=batch_size)
    assert seen == [256, spec.task.batch_size]
    with pytest.raises(InputError, match=r"^batch_size: 1000000; expected 1 to \d+, the examples"):
        verify(policy, replace(spec.task, batch_size=10**6))


def test_each_training_of_the_emulator_is_told_before_it_begins() -> None:
    task, told = MLP.with_steps(2), list[str]()
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    policy = preset("bfloat16", model.layer_names)
    for number, run in enumerate(emulator_runs(task, policy, model, dataset, 0, told.append), 1):
        assert len(told) == number and len(run.losses) == 2
    assert told == ["the emulator"] + ["the emulator, its values moved"] * DRAWS
    assert len(told) < STAGES


def test_only_known_targets_can_be_verified() -> None:
    policy = preset("float32", lenet5().layer_names)
    with pytest.raises(InputError, match="verify target: 'cobol'; expected one of torch"):
        verify(policy, Task(), target="cobol")


@pytest.mark.torch
def test_a_device_that_is_not_there_is_one_line() -> None:
    pytest.importorskip("torch")
    names = ("flatten", "fc1", "relu1", "fc2", "relu2", "fc3")
    with pytest.raises(InputError, match=r"^verify in torch: .*; expected it to train$"):
        verify(preset("bfloat16", names), MLP, steps=1, place="meta:none")


@pytest.mark.torch
def test_the_optimizer_gets_the_gradients_of_narrow_parameters() -> None:
    torch = pytest.importorskip("torch")
    from policysearch.verify.torch_training import VECTOR, _Updated

    narrow, wide, still = (
        torch.nn.Parameter(torch.ones(3, 5, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32, torch.bfloat16)
    )
    updated = _Updated(True, [narrow, wide, still])
    narrow.grad, wide.grad = torch.arange(15.0).view(3, 5).bfloat16(), torch.ones(3, 5)
    updated.take_gradients()
    filled, same, without = updated.tensors
    assert same is wide and without.grad is None
    assert filled.grad.flatten().tolist() == [*range(15), *[0.0] * (VECTOR - 15)]
    torch.optim.SGD(updated.tensors, lr=1.0).step()
    assert narrow.flatten().tolist() == [1.0 - i for i in range(15)]


def test_single_steps_from_the_targets_values_decide(mlp_verdict: Verdict) -> None:
    """What a chaotic training leaves open; of each kind of difference one that must be said."""
    alike = ForcedSteps(
        ("fc1.weight", "fc1.bias"),
        losses=np.full(4, 2e-5),
        moves=np.full((4, 2), 4e-4),
        own_losses=np.full(4, 3e-5),
        own_moves=np.full((4, 2), 5e-4),
        own_updates=np.full((4, 2), 5e-4),
        skips=(),
        off={},
    )
    assert alike.faults == () and alike.farther == 0.0
    chaotic = with_own(with_losses(mlp_verdict, 4, 1.9e-3), gaps=np.full(20, 1e-3))
    assert chaotic.undecided and replace(chaotic, forced=alike).undecided == ()
    page = verdict_page(replace(chaotic, forced=alike))
    assert page.endswith("pass") and "each step from torch's values: losses 2.0e-05" in page
    far = alike.moves.copy()
    far[2, 1] = 1.6e-3
    said = "step 2, from the target's values: fc1.bias moves 1.6e-03 of a move apart; expected at"
    assert replace(alike, moves=far).faults[0].startswith(said)
    assert "75% of all moves" in replace(alike, moves=alike.moves * [[1], [2], [2], [2]]).faults[0]
    assert replace(alike, losses=np.full(4, 1e-4)).faults[0].startswith("step 0, from")
    assert replace(alike, moves=far, alone=1).faults == ()
    assert replace(alike, moves=far + 1.6e-3, alone=7).faults[0].startswith("step 0, from")
    assert replace(alike, skips=(3,)).faults == ("step 3, from the target's values: one skips it",)
    failed = replace(chaotic, forced=replace(alike, skips=(3,)))
    last = verdict_page(failed).splitlines()[-1]
    assert failed.faults and last.startswith("next: verify preset:float32 on the same study;")
    file = verdict_page(replace(failed, edits=("the file, call 3: matmul",))).splitlines()[-1]
    assert file.startswith("next: write the file anew with `export`")
    written = ("layer attn: scaled_dot_product_attention keeps its scores in float32 inside",)
    assert 'attention = "flash"' in verdict_page(replace(failed, unlike=written)).splitlines()[-1]
    layers = dict.fromkeys(dict(failed.policy.layers), LayerPolicy())
    exact = replace(failed, policy=failed.policy.with_layers(layers))
    assert "imported otherwise" in verdict_page(exact).splitlines()[-1]


def test_a_move_of_a_draw_alone_is_as_far_as_none_of_the_targets_should_be() -> None:
    draws = np.full((3, 2, FORCED_DRAWS), 1e-3)
    assert _alone(draws) == 0
    draws[0, 1, 2] = draws[2, 0, 2] = draws[1, 0, 3] = 3.1e-3
    assert _alone(draws) == 2
    draws[1, 1] = 0.4 * LEAST_MOVE
    draws[1, 1, 2] = LEAST_MOVE
    assert _alone(draws) == 2


@pytest.mark.torch
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_language_model_with_norms_of_16_bits_is_decided(seed: int) -> None:
    """Signs of gradients near 0 turn there, and Adam's first step moves by them."""
    pytest.importorskip("torch")
    task = api.load_study(STUDY.with_name("gpt-sums.toml")).task
    names = task.build_model(task.load_dataset()).layer_names
    verdict = verify(preset("bfloat16", names), task, steps=6, seed=seed)
    assert verdict_page(verdict).endswith("pass")
    assert verdict.forced is not None and verdict.forced.alone > 0


@pytest.mark.torch
def test_operands_of_another_format_are_seen_in_single_steps() -> None:
    pytest.importorskip("torch")
    task, target = MLP.with_steps(4), target_named("torch")
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    policy = target.runs(preset("torch.autocast.float16", model.layer_names), model)
    other = replace(policy.layer("fc2"), compute="bfloat16", grad="bfloat16")
    found = []
    for exported in (policy, policy.with_layers({"fc2": other})):
        text = target.export(exported, model)
        made = verdicts.trained_in_torch(policy, task, model, 0, "cpu", text, keeps=True)
        given = made["values"], made["steps"]
        found.append(forced_steps(task, policy, model, dataset, 0, *given))
    right, wrong = found
    assert right.faults == () and right.farther < 0.5
    assert any("of a move apart" in line for line in wrong.faults)
