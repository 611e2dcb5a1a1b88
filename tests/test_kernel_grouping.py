"""How nodes become kernels, on random graphs, against dependencies worked out anew every time."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.cost import kernels
from policysearch.cost.kernels import ACCUMULATOR, CELL, FUSIONS, MERGED, fuse, kernels_of
from policysearch.cost.stacks import STACKS, Stack
from policysearch.graph import Graph
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS

COMPILED = STACKS["torch.compile"]
SHAPE = (8, 8)
ROLES = ("fprop", "dgrad", "wgrad", "update")
FORMATS = ("float32", "float16", "float8_e4m3fn")


def random_graph(rng: np.random.Generator) -> Graph:
    """Return products, casts, sums, reductions and a finite check in phases of any length."""
    b = Builder()
    for name in ("data", "parameter"):
        for _ in range(3):
            b.emit(OPS[name], attrs={"shape": SHAPE}, role="input", layer="fc")
    count, ends, reach = int(rng.integers(5, 80)), np.sort(rng.random(3)), rng.exponential(6) + 1
    outputs = {}
    for number in range(count):
        whole = [node.id for node in b.nodes if node.shape == SHAPE]
        near = [whole[max(0, len(whole) - 1 - int(rng.exponential(reach)))] for _ in range(3)]
        fields = {
            "role": ROLES[int((number / count > ends).sum())],
            "layer": str(rng.choice(["", "fc"])),
            "format": str(rng.choice(FORMATS)),
        }
        names = ("matmul", "cast", "reshape", "amax", "relu", "add", "all_finite")
        name = str(rng.choice(names, p=(0.1, 0.15, 0.05, 0.05, 0.2, 0.42, 0.03)))
        if name == "all_finite" and (fields["role"] != "update" or "finite" in outputs):
            continue
        inputs = {"matmul": 2, "add": 2, "all_finite": 3}.get(name, 1)
        attrs = {"shape": SHAPE} if name == "reshape" else {}
        made = b.emit(OPS[name], *near[:inputs], attrs=attrs, **fields)
        if name == "all_finite":
            outputs["finite"] = made
    return b.graph(outputs)


class Anew(kernels._Grouping):
    """Forgets what it keeps of dependencies and works it out from the nodes after every node."""

    def pass_on(self, k: int) -> None:
        everyone = range(len(self.members))
        self.parents = [
            {self.home[i] for node in self.members[m] for i in self.inputs(node)} - {-1, m}
            for m in everyone
        ]
        self.readers = [{m for m in everyone if k in self.parents[m]} for k in everyone]
        self.above = [sum(1 << p for p in self.ancestors(m)) for m in everyone]

    def ancestors(self, m: int) -> set[int]:
        found: set[int] = set()
        waiting = set(self.parents[m])
        while waiting:
            found |= waiting
            waiting = {p for k in waiting for p in self.parents[k]} - found
        return found


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_kernels_are_those_of_dependencies_worked_out_anew(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [random_graph(np.random.default_rng(seed)) for seed in range(50)]
    found = [kernels_of(graph, stack) for graph in graphs]
    monkeypatch.setattr(kernels, "_Grouping", Anew)
    for seed, (graph, each) in enumerate(zip(graphs, found, strict=True)):
        assert kernels_of(graph, stack) == each, seed


def test_random_graphs_take_earlier_kernels_into_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = []
    move = kernels._Grouping.move

    def watched(self: kernels._Grouping, k: int, to: int) -> None:
        moved.append(k != to)
        move(self, k, to)

    monkeypatch.setattr(kernels._Grouping, "move", watched)
    for seed in range(100):
        kernels_of(random_graph(np.random.default_rng(seed)), COMPILED)
    assert sum(moved) > 100


def test_alike_updates_of_which_one_waits_for_the_other_run_apart() -> None:
    b = Builder()
    x, y, z = (b.emit(OPS["data"], attrs={"shape": SHAPE}) for _ in range(3))
    one = b.emit(OPS["data"], attrs={"shape": ()})
    with b.scope(role="update"):
        first, alike = (b.emit(OPS["unscale"], made, one) for made in (x, y))
        waiting = b.emit(OPS["unscale"], z, b.emit(OPS["amax"], first))
    graph = b.graph({"first": first, "alike": alike, "waiting": waiting})
    merged = [[n.id for n in kernel.nodes] for kernel in kernels_of(graph, COMPILED)]
    assert merged == [[first, alike, waiting - 1], [waiting]]


@pytest.mark.parametrize(
    ("stack", "joined"),
    [
        ("torch.eager", {"bias into its product": 1}),
        ("torch.compile", {"bias into its product": 1, "cast behind a product": 1}),
        (
            "mindspore.graph",
            {
                "bias into its product": 1,
                "activation into its product": 1,
                "cast behind a product": 1,
            },
        ),
    ],
)
def test_rules_say_what_joins_a_product(stack: str, joined: dict[str, int]) -> None:
    b = Builder()
    x, weight = (b.emit(OPS["data"], attrs={"shape": SHAPE}) for _ in range(2))
    offset = b.emit(OPS["parameter"], attrs={"shape": (8,)})
    product = b.emit(OPS["matmul"], x, weight)
    biased = b.emit(OPS["bias"], product, offset)
    half = b.emit(OPS["cast"], biased, format="float16")
    act = b.emit(OPS["relu"], biased)
    graph = b.graph({"half": half, "act": act})
    made = fuse(graph, STACKS[stack])
    assert {rule: count for rule, count in made.by_rule if count} == joined
    alone = {n.id for kernel in made.kernels for n in kernel.nodes if len(kernel.nodes) == 1}
    assert alone == {half, act} - ({half} if "cast behind a product" in joined else set()) - (
        {act} if "activation into its product" in joined else set()
    )


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_every_join_is_a_kernel_less_and_is_counted(stack: Stack) -> None:
    seen: set[str] = set()
    for seed in range(100):
        graph = random_graph(np.random.default_rng(seed))
        made = fuse(graph, stack)
        nodes = sum(len(kernel.nodes) for kernel in made.kernels)
        assert nodes - sum(count for _, count in made.by_rule) == len(made.kernels)
        seen |= {rule for rule, count in made.by_rule if count}
    never = {ACCUMULATOR, CELL, "bias into its product", "else into a product"}
    never |= {row.name for row in FUSIONS if row.allows == "norm_fusion"}  # no stack's by default
    everything = {rule for rule, _ in made.by_rule} - never
    if stack is STACKS["mindspore.graph"]:
        assert seen == everything
    assert (MERGED in seen) == stack.fused_optimizer


@pytest.mark.parametrize("apart", [False, True])
def test_a_bias_that_is_added_apart_is_a_kernel_of_its_own(apart: bool) -> None:
    """torch adds it to rows that are not side by side in memory by `add_`, behind the product."""
    b = Builder()
    x, w, bias = (
        b.emit(OPS["data"], attrs={"shape": shape}, role="input", name=name)
        for name, shape in (("x", (16, 8)), ("w", (8, 4)), ("b", (4,)))
    )
    product = b.emit(OPS["matmul"], x, w)
    made = b.emit(OPS["bias"], product, bias, attrs={"apart": True} if apart else {})
    kernels = kernels_of(b.graph({"made": made}), STACKS["torch.eager"])
    expected = [["matmul"], ["bias"]] if apart else [["matmul", "bias"]]
    assert [[node.op.name for node in kernel.nodes] for kernel in kernels] == expected
