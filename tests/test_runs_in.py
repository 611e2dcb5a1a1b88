"""What tables say a layer runs in is what its nodes compute in, under every preset."""

from __future__ import annotations

import pytest

from policysearch.formats import format_named
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.policy.presets import PRESETS, preset
from policysearch.report.lost import product_lines
from policysearch.report.runs_in import runs_in, runs_of, tracing_of
from policysearch.study.specification import spec_from_text
from policysearch.train.tasks import Task
from tests.studies import TINY

LAYERS = ("flatten", "fc1", "tanh1", "fc2")
NETS = {
    "resnet": Task(model="resnet", data="digits", batch_size=4),
    "transformer": Task(model="transformer", data="digits", batch_size=4),
}


@pytest.fixture(scope="module", params=NETS)
def objective(request: pytest.FixtureRequest) -> Objective:
    return Objective(NETS[request.param], "H100-SXM5", "torch.compile")


def products(graph: Graph) -> dict[str, set[str]]:
    """Return by layer the formats that its products read, from the nodes alone."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.op.kind == "gemm" and node.role != "update":
            read = found.setdefault(node.layer, set())
            read |= {graph.nodes[i].format for i in node.inputs[:2]}
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_a_format_is_said_of_a_layer_only_where_one_of_its_ops_has_it(
    name: str, objective: Objective
) -> None:
    graph = objective.step_graph(preset(name, objective.model.layer_names))
    read = products(graph)
    made: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.role != "update" and not node.op.converts:
            made.setdefault(node.layer, set()).add(node.format)
    runs = runs_in(graph)
    assert set(objective.model.layer_names) <= runs.keys()
    for layer, ran in runs.items():
        assert ran.product == (layer in read)
        assert ran.forward
        assert {*ran.forward, *ran.backward} <= (read[layer] if ran.product else made[layer])
        if not ran.product:
            said = [format_named(form) for form in (*ran.forward, *ran.backward)]
            assert not any(form.operands_only for form in said), (layer, ran)


def test_norms_between_fp8_products_run_in_the_format_of_the_recipe(objective: Objective) -> None:
    graph = objective.step_graph(preset("te.current", objective.model.layer_names))
    runs = runs_in(graph)
    norms = [n for n in graph.nodes if n.op.name in ("batch_norm", "layer_norm")]
    assert len(norms) > 1
    for norm in norms:
        assert runs[norm.layer].forward == (norm.format,)


@pytest.mark.parametrize("name", ["float32", "te.current", "torch.autocast.bfloat16"])
def test_products_are_counted_and_norms_that_run_otherwise_are_named(
    name: str, objective: Objective
) -> None:
    policy = preset(name, objective.model.layer_names)
    graph = objective.step_graph(policy)
    formats, runs = dict(policy.layers), runs_in(graph)
    first, *others = product_lines(formats, runs)
    counts = [int(part.split(" in ")[0]) for part in first.split(": ")[1].split(", ")]
    read = products(graph)
    assert sum(counts) == len(read)
    norms = {n.layer: n.format for n in graph.nodes if n.op.name in ("batch_norm", "layer_norm")}
    unlike = {n: form for n, form in norms.items() if form != formats[n].compute}
    assert (name == "te.current") <= bool(unlike) and (name == "float32") <= (not unlike)
    for layer, form in unlike.items():
        said = f": named {formats[layer].compute}, runs in {form}"
        assert any(layer in line.split(": ")[0].split(", ") and said in line for line in others)


def test_nothing_is_said_of_another_net() -> None:
    tracing = tracing_of(spec_from_text(TINY, "tiny"))
    assert runs_of(tracing, preset("bfloat16", LAYERS)) is not None
    assert runs_of(tracing, preset("bfloat16", ("a", "b"))) is None
    assert runs_of(None, preset("bfloat16", LAYERS)) is None


def test_code_of_the_user_is_not_run_for_a_page() -> None:
    text = TINY.replace('model = "mlp"', 'model = "net.py:model"')
    for line in ('activation = "tanh"', "widths = [8]", 'ops = ["tanh"]'):
        text = text.replace(line, "")
    assert tracing_of(spec_from_text(text, "tiny")) is None
    data = TINY.replace('data = "digits"', 'data = "net.py:data"')
    assert tracing_of(spec_from_text(data, "tiny")) is None
