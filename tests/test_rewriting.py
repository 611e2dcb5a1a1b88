"""Rules over a step's graph: what they emit, what stays attached, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from policysearch.graph import Graph, Node
from policysearch.nn.model import NEXT
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.activations import tanh
from policysearch.ops.batch_norm import moving_average
from policysearch.ops.dense import matmul
from policysearch.ops.elementwise import scale
from policysearch.ops.shape import reshape
from policysearch.ops.source import cast
from policysearch.rewrite.cast_rules import cancel_casts
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.folding import FOLDING
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import Pattern, chain, node
from policysearch.rewrite.rules import Pass, RuledModel, apply_rule, apply_rules, rule
from policysearch.train.step import trace_forward
from policysearch.values import InputError
from tests.emulated_steps import started
from tests.rewritten_steps import WITH_BIAS, feeds, run, step_of
from tests.test_patterns import graphs, patterns


@rule(chain(node("act", op="relu")))
def relu_to_tanh(edit: Editor, match: Match) -> None:
    """Another function in its place."""
    act = match["act"]
    edit.redirect(act, edit.emit(tanh, *edit.inputs(act), at=act))


def test_gradients_are_those_of_the_changed_forward_pass() -> None:
    """The changed LeNet-5 is the one that was built with tanh."""
    model = RuledModel(lenet5("relu"), (relu_to_tanh,))
    built = lenet5("tanh")
    changed, expected = step_of(model), step_of(built)
    arrays = started(expected, built)
    one, other = run(changed, arrays), run(expected, arrays)
    names = [name for name, _ in expected.outputs]
    assert len([name for name in names if name.startswith("grad:")]) == 10
    for name in names:
        np.testing.assert_array_equal(one.value(name), other.value(name))
    for step in (one, other):
        step.apply_updates()
    for name in other.arrays:
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name])


def test_running_statistics_stay_attached() -> None:
    model = RuledModel(WITH_BIAS, (relu_to_tanh,))
    graph = step_of(model)
    for kind in ("running_mean", "running_var"):
        moved = graph.output(NEXT + f"norm.{kind}")
        assert moved.op is moving_average
        assert graph.inputs_of(moved)[0].name == f"norm.{kind}"


def test_a_rule_after_the_backward_pass_may_not_change_a_value() -> None:
    valid = r"node \[\d+\] relu of layer 'relu1': its gradient 'relu_grad' is there already"
    with pytest.raises(InputError, match=f"rule 'relu_to_tanh': {valid}"):
        apply_rule(step_of(lenet5()), relu_to_tanh)


def test_new_nodes_have_names_of_their_own_that_say_where_they_are_from() -> None:
    @rule(chain(node("act", op="relu")))
    def doubled(edit: Editor, match: Match) -> None:
        act = match["act"]
        half = edit.emit(scale, act.id, at=act, attrs={"factor": 0.5})
        edit.redirect(act, edit.emit(scale, half, at=act, attrs={"factor": 2.0}))

    graph, _ = apply_rules(trace_forward(lenet5(), 2), [doubled, doubled])
    names = [n.name for n in graph.nodes if n.op is scale]
    assert (
        names[:4]
        == [
            "relu1.doubled.scale",
            "relu1.doubled.scale2",
            "relu1.doubled.scale3",
            "relu1.doubled.scale4",
        ]
        or len(set(names)) == len(names) == 16
    )
    assert {n.layer for n in graph.nodes if n.op is scale} == {f"relu{i}" for i in range(1, 5)}
    for place, found in enumerate(graph.nodes):
        assert found.id == place
        assert all(i < place for i in found.inputs)


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (
            lambda e, n: e.emit(reshape, n.id, at=n, attrs={"shape": (-1,)}),
            r"shape \[.*\]; expected \[2, 6, 28, 28\]",
        ),
        (
            lambda e, n: e.emit(cast, n.id, at=n, format="float16"),
            "format float16; expected float32",
        ),
    ],
)
def test_another_shape_or_format_is_an_error_that_names_rule_and_node(
    emit: Callable[[Editor, Node], int], said: str
) -> None:
    @rule(chain(node("act", op="relu", layer="relu1")))
    def wrong(edit: Editor, match: Match) -> None:
        edit.redirect(match["act"], emit(edit, match["act"]))

    where = r"rule 'wrong': node \[\d+\] relu of layer 'relu1'"
    with pytest.raises(InputError, match=f"{where}: {said}"):
        apply_rule(trace_forward(lenet5(), 2), wrong)


def test_ops_that_do_not_fit_and_cycles_are_errors_that_name_rule_and_node() -> None:
    @rule(chain(node("act", op="relu", layer="relu1")))
    def misfit(edit: Editor, match: Match) -> None:
        edit.emit(matmul, match["act"].id, at=match["act"])

    @rule(chain(node("conv", op="conv2d", layer="conv1"), node("bias", op="bias")))
    def bites_its_tail(edit: Editor, match: Match) -> None:
        edit.redirect(match["conv"], match["bias"].id)

    graph = trace_forward(lenet5(), 2)
    with pytest.raises(InputError, match=r"rule 'misfit': node .* of layer 'relu1': op 'matmul'"):
        apply_rule(graph, misfit)
    with pytest.raises(InputError, match=r"rule 'bites_its_tail': node .* 'conv1': .* no cycle"):
        apply_rule(graph, bites_its_tail)


def test_a_rule_that_matches_nothing_is_an_error_unless_optional() -> None:
    graph = trace_forward(mlp((4, 4, 2)), 2)
    with pytest.raises(InputError, match="rule 'fold_batch_norm': matches no node"):
        apply_rule(graph, FOLDING["fold_batch_norm"])
    assert apply_rule(graph, cancel_casts).after == graph


def test_a_stateful_op_shares_its_state_or_has_a_copy() -> None:
    def made(state: str) -> Pass:
        @rule(chain(node("norm", op="moving_average", layer="norm")))
        def twice(edit: Editor, match: Match) -> None:
            norm = match["norm"]
            second = edit.duplicate(norm, state)  # type: ignore[arg-type]
            edit.outputs[f"second {norm.id}"] = second

        return apply_rule(step_of(WITH_BIAS), twice)

    shared, copied = made("shared"), made("copied")
    assert shared.copies == ()
    assert copied.copies == (
        ("norm.twice.norm.running_mean", "norm.running_mean"),
        ("norm.twice.norm.running_var", "norm.running_var"),
    )
    graph = copied.after
    moved = graph.output(NEXT + "norm.twice.norm.running_mean")
    assert graph.inputs_of(moved)[0].name == "norm.twice.norm.running_mean"
    arrays = started(graph, WITH_BIAS)
    for new, old in copied.copies:
        arrays[new][...] = arrays[old]
    step = run(graph, arrays)
    for kind in ("running_mean", "running_var"):
        one, other = step.value(NEXT + f"norm.{kind}"), step.value(NEXT + f"norm.twice.norm.{kind}")
        np.testing.assert_array_equal(one, other)
        assert np.abs(one).max() > 0


@settings(max_examples=60, deadline=None)
@given(graphs(), patterns())
def test_random_rules_on_random_graphs_change_no_bit_where_they_say_the_same(
    graph: Graph, pattern: Pattern
) -> None:
    """Half of every matched value, doubled: exact in float32, whatever reads it."""
    graph = replace(graph, nodes=tuple(replace(n, format="float32") for n in graph.nodes))

    @rule(pattern, optional=True)
    def halved_and_doubled(edit: Editor, match: Match) -> None:
        for found in match.nodes:
            half = edit.emit(scale, found.id, at=found, attrs={"factor": 0.5})
            whole = edit.emit(scale, half, at=found, attrs={"factor": 2.0})
            edit.redirect(found, whole)

    done = apply_rule(graph, halved_and_doubled)
    changed = done.after
    if done.matched:
        needed = len(graph.needed({i for _, i in graph.outputs}))
        assert len(changed.nodes) >= min(needed, len(graph.nodes))
    names = [n.name for n in changed.nodes if n.name]
    assert len(set(names)) == len(names)
    for place, found in enumerate(changed.nodes):
        shapes = [changed.nodes[i].shape for i in found.inputs]
        assert found.op.shape(shapes, found.attributes) == found.shape
        assert all(i < place for i in found.inputs)
    arrays = feeds(graph)
    np.testing.assert_array_equal(
        run(changed, arrays).value("out"), run(graph, arrays).value("out")
    )
