"""The rules that come with the package: folding, clipping, and casts that are not needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray, Graph
from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.shape import reshape
from policysearch.ops.source import LEARNING_RATE, cast
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.cast_rules import cancel_casts, sink_casts
from policysearch.rewrite.clipping import clip_by_norm, clip_by_value
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.folding import FOLDING
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rewrite.rules import Rule, RuledModel, apply_rule, apply_rules, node_lines
from policysearch.train.step import trace_forward
from policysearch.values import InputError
from tests.emulated_steps import fill, started
from tests.rewritten_steps import RESNET, WITH_BIAS, feeds, run, step_of


@pytest.mark.parametrize("model", [RESNET, WITH_BIAS], ids=["resnet", "with bias"])
def test_folded_batch_norms_evaluate_to_the_same_logits(model: Model) -> None:
    graph = trace_forward(model, 4)
    folds = [Rule(r.name, r.pattern, r.change, r.stage, True) for r in FOLDING.values()]
    folded, passes = apply_rules(graph, folds)
    norms = sum(n.op.name == "batch_norm" for n in graph.nodes)
    assert sum(each.matched for each in passes) == norms > 0
    assert not any(n.op.name == "batch_norm" for n in folded.nodes)
    arrays = feeds(graph)
    before, after = (run(g, arrays).value("logits") for g in (graph, folded))
    assert np.abs(before - after).max() <= 1e-6 * np.abs(before).max()


def test_folding_is_refused_in_training_with_the_reason() -> None:
    valid = r"rule 'fold_batch_norm': node \[\d+\] batch_norm of layer 'bn1': it normalises by the"
    with pytest.raises(InputError, match=valid):
        apply_rule(step_of(RESNET), FOLDING["fold_batch_norm"])


def test_a_model_with_a_fold_trains_as_before_and_evaluates_folded() -> None:
    model = RuledModel(RESNET, (FOLDING["fold_batch_norm"],))
    assert node_lines(step_of(model)) == node_lines(step_of(RESNET))
    evaluated = trace_forward(model, 4)
    assert not any(n.op.name == "batch_norm" for n in evaluated.nodes)
    arrays = feeds(evaluated)
    expected = run(trace_forward(RESNET, 4), arrays).value("logits")
    np.testing.assert_allclose(run(evaluated, arrays).value("logits"), expected, rtol=1e-4)
    assert model.fingerprint != RESNET.fingerprint
    with pytest.raises(InputError, match="stage 'formats'; expected evaluation"):
        RuledModel(RESNET, (replace(clip_by_norm(1.0), stage="formats"),))


def clipped_by_hand(
    grads: Mapping[str, FloatArray], groups: list[list[str]], limit: float
) -> dict[str, FloatArray]:
    """torch.nn.utils.clip_grad_norm_ on each group."""
    done = dict(grads)
    for group in groups:
        norm = np.sqrt(sum(float(np.sum(np.float64(grads[n]) ** 2)) for n in group))
        factor = min(1.0, limit / (norm + 1e-6))
        done |= {name: (grads[name] * factor).astype(np.float32) for name in group}
    return done


def grads_of(step: Step) -> dict[str, FloatArray]:
    names = [name for name, _ in step.graph.outputs if name.startswith("grad:")]
    return {name.removeprefix("grad:"): step.value(name).copy() for name in names}


def sgd_moves(graph: Graph, model: Model) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Return the gradients before clipping, and those that SGD has moved along."""
    step = compile_graph(graph)
    fill(step, model)
    before = {spec.name: step.arrays[spec.name].copy() for spec in model.parameters()}
    step.arrays[LEARNING_RATE][...] = 1.0
    step.forward_backward()
    grads = grads_of(step)
    step.apply_updates()
    return grads, {name: before[name] - step.arrays[name] for name in before}


@pytest.mark.parametrize("per", ["parameter", "layer", "group"])
def test_clipping_by_norm_is_the_hand_written_one(per: str) -> None:
    model = mlp((16, 8, 8, 10))
    clipping = clip_by_norm(0.05, layer=r"fc[12]", per=per)  # type: ignore[arg-type]
    graph = apply_rule(step_of(model, "sgd"), clipping).after
    grads, moved = sgd_moves(graph, model)
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    groups = {
        "parameter": [[n] for n in names],
        "layer": [names[:2], names[2:]],
        "group": [names],
    }[per]
    expected = clipped_by_hand(grads, groups, 0.05)
    assert any(not np.array_equal(expected[n], grads[n]) for n in names)
    for name in expected:
        np.testing.assert_allclose(moved[name], expected[name], rtol=1e-4, atol=1e-7)


def test_clipping_by_value_is_the_hand_written_one_after_an_earlier_clip() -> None:
    model = mlp((16, 8, 8, 10))
    rules = [clip_by_norm(0.05), clip_by_value(0.004)]
    graph, passes = apply_rules(step_of(model, "sgd"), rules)
    assert [each.matched for each in passes] == [6, 6]
    grads, moved = sgd_moves(graph, model)
    expected = clipped_by_hand(grads, [list(grads)], 0.05)
    assert any(np.abs(e).max() > 0.004 for e in expected.values())
    for name in expected:
        by_hand = np.clip(expected[name], -0.004, 0.004)
        np.testing.assert_allclose(moved[name], by_hand, rtol=1e-4, atol=1e-7)


def test_the_finite_check_reads_what_was_not_clipped() -> None:
    graph = apply_rule(step_of(mlp((16, 8, 10))), clip_by_value(1.0)).after
    check = graph.output("finite")
    assert {n.op.name for n in graph.inputs_of(check)} == {"unscale"}
    assert graph.output("grad:fc1.weight").op.name == "unscale"


NETS = {"lenet5": lenet5(), "transformer": transformer((4, 8), 10, 8, (16,), 2)}


@pytest.mark.parametrize(("name", "net"), [*zip(PRESETS, cycle(NETS), strict=False)])
def test_cast_rules_change_no_bit(net: str, name: str) -> None:
    model = NETS[net]
    graph = apply_policy(step_of(model), preset(name, model.layer_names))
    changed, _ = apply_rules(graph, [sink_casts, cancel_casts])
    arrays = started(graph, model)
    one, other = run(changed, arrays), run(graph, arrays)
    for key, _i in graph.outputs:
        np.testing.assert_array_equal(one.value(key), other.value(key), key)
    for step in (one, other):
        step.apply_updates()
    for key in other.arrays:
        np.testing.assert_array_equal(one.arrays[key], other.arrays[key], key)


def test_a_cast_to_and_fro_is_cancelled_and_one_before_a_reshape_sinks() -> None:
    policy = preset("mindspore.O3", lenet5().layer_names)
    narrow = apply_policy(trace_forward(lenet5(), 2), policy)
    flat = next(n for n in narrow.nodes if n.op is reshape)
    edit = Editor(narrow, "casts")
    wide = edit.emit(cast, *flat.inputs, at=flat, format="float32")
    moved = edit.emit(reshape, wide, at=flat, attrs=flat.attributes, format="float32")
    edit.redirect(flat, edit.emit(cast, moved, at=flat, format="float16"))
    graph = edit.finished()
    sunk = apply_rule(graph, sink_casts)
    assert sunk.matched == 1
    assert sunk.casts_removed == 0
    cancelled = apply_rule(sunk.after, cancel_casts)
    assert cancelled.casts_removed == 2
    assert len(cancelled.after.nodes) == len(narrow.nodes)
    arrays = feeds(narrow)
    expected = run(narrow, arrays).value("logits")
    for changed in (graph, sunk.after, cancelled.after):
        np.testing.assert_array_equal(run(changed, arrays).value("logits"), expected)
