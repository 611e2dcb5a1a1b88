"""The printout of what passes do: its counts are those of the graphs."""

from __future__ import annotations

import re

import pytest

from policysearch.cli import main
from policysearch.commands.shared import task_for
from policysearch.cost.devices import DEVICES
from policysearch.cost.kernels import kernels_of
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import step_time
from policysearch.nn.models import lenet5
from policysearch.policy.presets import preset
from policysearch.report.graph_diff import diff_of, policy_passes
from policysearch.rewrite.rules import node_lines


def test_the_passes_end_at_the_step_that_is_trained() -> None:
    task, model = task_for("lenet5"), lenet5()
    for name, count in (("mindspore.O2", 1), ("te.delayed", 2), ("torchao.rowwise", 2)):
        policy = preset(name, model.layer_names)
        passes = policy_passes(task, model, policy)
        assert [each.name for each in passes[:count]] == ["policy", "scaling"][:count]
        whole = task.tracing(model, task.batch_size).step_graph(policy)
        assert passes[count - 1].after == whole
        assert [each.after for each in passes[:-1]] == [each.before for each in passes[1:]]


def test_casts_that_sink_to_their_opposites_are_cancelled() -> None:
    task = task_for("transformer")
    model = task.build_model(task.load_dataset())
    passes = policy_passes(task, model, preset("mindspore.O1", model.layer_names))
    sunk, cancelled = passes[-2:]
    assert sunk.matched > 0
    assert cancelled.casts_removed > 0
    casts = [sum(n.op.converts for n in g.nodes) for g in (cancelled.before, cancelled.after)]
    assert cancelled.casts_removed == casts[0] - casts[1]


def test_the_command_prints_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "preset:mindspore.O2", "--model", "lenet5", "--diff"]) == 0
    text = capsys.readouterr().out
    task, model = task_for("lenet5"), lenet5()
    policy = preset("mindspore.O2", model.layer_names)
    (first, *_) = policy_passes(task, model, policy)
    assert f"pass policy: {len(first.before.nodes)} matched, {first.changed} nodes changed" in text
    assert f"nodes {len(first.before.nodes)} to {len(first.after.nodes)}" in text
    shown = text.split("pass sink_casts")[0]
    plus = re.findall(r"^  \+ (.*)$", shown, re.M)
    minus = re.findall(r"^  - (.*)$", shown, re.M)
    before, after = node_lines(first.before), node_lines(first.after)
    assert len(plus) - len(minus) == len(after) - len(before)
    assert set(plus) >= set(after) - set(before)
    assert re.search(
        r"modeled time 1\.000 to \d\.\d{3} \(times 0\.\d\d to 1\.\d\d\), "
        r"peak [\d.]+ to [\d.]+ MiB",
        text,
    )
    assert f"by rule: source {sum(n.op.kind == 'source' for n in first.before.nodes)}, " in text


def test_the_last_pass_groups_what_is_priced() -> None:
    task, model = task_for("lenet5"), lenet5()
    passes = policy_passes(task, model, preset("te.delayed", model.layer_names))
    text = diff_of(passes, "H100-SXM5", "torch.compile")
    trained = passes[1].after
    kernels = kernels_of(trained, STACKS["torch.compile"])
    priced = step_time(trained, DEVICES["H100-SXM5"], STACKS["torch.compile"]).kernels
    assert len(priced) == len(kernels)
    nodes = sum(len(kernel.nodes) for kernel in kernels)
    assert f"pass fusion of torch.compile: {nodes} nodes in {len(kernels)} kernels" in text
    assert text.count("\n  & ") == sum(len(kernel.nodes) > 1 for kernel in kernels)
    assert "  & fprop fc2 matmul with descale, bias\n" in text
