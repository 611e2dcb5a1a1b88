"""Price tables against exact prices, one policy at a time."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from policysearch.cost.memory import lives
from policysearch.cost.tables import CHECKED, PriceTable, _homes, _live
from policysearch.objective.objective import Objective
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.search.candidates import KEPT_WIDE, SpacePool, SpacePrices, price_of
from policysearch.search.price_table import cheapest, format_table, formats_of, lookup_of
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.train.tasks import Task
from policysearch.values import InputError

FORMATS = ("float32", "bfloat16", "float8_e4m3fn")
DEEP = Task(model="mlp", data="digits", widths=(512,) * 11, batch_size=4096)
RESIDUAL = Task(model="transformer", data="digits", batch_size=1024)


@functools.cache
def made(task: Task, stack: str) -> tuple[Objective, Space, PriceTable]:
    objective = Objective(task, "H100-SXM5", stack)
    space = make_space(SpaceSection(formats=FORMATS), objective.model)
    return objective, space, format_table(objective, space, {}, np.random.default_rng(0))


def exact(objective: Objective, space: Space, row: object) -> tuple[float, int]:
    price = objective.step_price(space.policy(formats_of(space, tuple(row))))  # type: ignore[arg-type]
    return price.time.step_seconds, price.memory.peak_bytes


@pytest.mark.parametrize(
    ("task", "stack", "time_error", "memory_error"),
    [
        (DEEP, "mindspore.graph", 0.02, 0.01),
        (DEEP, "torch.eager", 0.02, 0.01),
        (RESIDUAL, "torch.compile", 0.05, 0.15),
    ],
)
def test_policies_cost_what_they_do_exactly(
    task: Task, stack: str, time_error: float, memory_error: float
) -> None:
    objective, space, table = made(task, stack)
    drawn = np.random.default_rng(7).integers(0, len(FORMATS), (12, len(space.groups)))
    seconds, peaks = table.priced(drawn)
    found = np.array([exact(objective, space, row) for row in drawn])
    assert np.ptp(found[:, 0]) > 0.1 * found[:, 0].mean()  # they do differ
    np.testing.assert_allclose(seconds, found[:, 0], rtol=time_error)
    np.testing.assert_allclose(peaks, found[:, 1], rtol=memory_error)
    assert table.time_error <= time_error and table.memory_error <= memory_error


def test_the_errors_told_are_those_of_policies_drawn_beside() -> None:
    objective, space, table = made(RESIDUAL, "torch.compile")
    assert table.time_error > 0.0  # casts that several layers share are no terms of pairs
    drawn = np.random.default_rng(3).integers(0, len(FORMATS), (CHECKED, len(space.groups)))
    found = np.array([exact(objective, space, row)[0] for row in drawn])
    own = np.abs(table.step_seconds(drawn) / found - 1).max()
    assert own <= 3 * table.time_error


def test_fewer_prices_than_assignments_are_needed_and_told() -> None:
    _, space, table = made(DEEP, "torch.compile")
    assert len(space.groups) == 12
    assert CHECKED < table.prices <= 60


@pytest.mark.parametrize("row", [[0] * 11, [0] * 13, [3] + [0] * 11, [-1] + [0] * 11])
def test_what_is_no_assignment_is_refused(row: list[int]) -> None:
    _, _, table = made(DEEP, "torch.compile")
    with pytest.raises(InputError, match=r"choices: shape \(1, \d+\); expected \[n, 12\]"):
        table.priced(np.array([row]))


def test_no_assignments_have_no_prices() -> None:
    _, _, table = made(DEEP, "torch.compile")
    seconds, peaks = table.priced(np.empty((0, 12), int))
    assert seconds.shape == peaks.shape == (0,)


def test_the_cheapest_assignment_is_that_of_all_assignments() -> None:
    """Against every assignment, priced by the table itself."""
    rng = np.random.default_rng(4)
    slots, options, columns = 4, 3, 5
    shape = (options, options, columns)
    terms = [(i, (i + 1,), rng.uniform(size=shape)) for i in range(slots - 1)]
    terms += [(i, (i,), rng.uniform(size=shape)) for i in range(slots)]
    constant = np.zeros(columns)
    device = Objective(DEEP, "H100-SXM5", "torch.compile").device
    table = PriceTable(device, (options,) * slots, constant, tuple(terms), 0.0, 0.0, 0)
    every = np.array(list(itertools.product(range(options), repeat=slots)), dtype=np.intp)
    sums = table.summed(every)
    peak = 2 + int(sums[0, 2:].argmax())
    weights, more = rng.uniform(size=(20, 2)), rng.uniform(size=(20, slots, options))
    found = cheapest(table, weights, more)
    for weight, added, row in zip(weights, more, found, strict=True):
        scores = sums[:, [0, peak]] @ weight + added[np.arange(slots), every].sum(axis=1)
        assert row.tolist() == every[scores.argmin()].tolist()
    assert len({tuple(row) for row in found.tolist()}) > 10


def test_a_lookup_prices_policies_of_every_way() -> None:
    objective = Objective(DEEP, "H100-SXM5", "mindspore.graph")
    section = SpaceSection(formats=FORMATS, master_weights=(True, False))
    space = make_space(section, objective.model)
    lookup = lookup_of(objective, space, 0)
    assert lookup is not None and len(lookup.ways) == 2
    rng = np.random.default_rng(5)
    drawn = [
        {name: str(rng.choice(FORMATS)) for name in lookup.names} | lookup.ways[i % 2]
        for i in range(6)
    ]
    exact = [objective.price(space.policy(params)) for params in drawn]
    wanted = np.array([(1.0 / cost.speedup, cost.memory_ratio) for cost in exact])
    assert np.ptp(wanted, axis=0).min() > 0.02
    np.testing.assert_allclose(lookup.costs(drawn), wanted, rtol=0.02)


def test_a_space_with_too_many_other_decisions_has_no_lookup() -> None:
    objective = Objective(DEEP, "H100-SXM5", "mindspore.graph")
    section = SpaceSection(
        formats=FORMATS,
        master_weights=(True, False),
        optimizer_states=("float32", "bfloat16", "float16"),
        scalings=("none", "delayed"),
    )
    assert lookup_of(objective, make_space(section, objective.model), 0) is None


def test_a_large_space_is_priced_by_lookup() -> None:
    objective = Objective(DEEP, "H100-SXM5", "mindspore.graph")
    space = make_space(SpaceSection(formats=FORMATS), objective.model)
    encoding, prices = Encoding(space), SpacePrices(objective, space, 0)
    pool = SpacePool(space, encoding, lambda params: None, 0, prices)
    theta = np.log(1e-4 * np.linspace(1.0, 20.0, len(encoding.decisions.counted())))
    rows, costs = pool.propose([], theta)
    again, _ = pool.propose([], theta)
    assert rows.tolist() == again.tolist() and len(rows) > 10
    first = objective.price(space.policy(pool.params_of(tuple(rows[0].tolist()))))
    np.testing.assert_allclose(costs[0], (1.0 / first.speedup, first.memory_ratio), rtol=0.02)
    low = (rows != 0).mean(axis=0)  # what costs least in the gap is lowered most
    assert low[:4].mean() > low[-4:].mean() + 0.1


def price_of_params(
    objective: Objective, space: Space, params: Params
) -> tuple[float, float] | None:
    return price_of(objective, space.policy(params))


def test_two_formats_are_proposed_with_the_wider_where_it_gains_most() -> None:
    objective = Objective(DEEP, "H100-SXM5", "mindspore.graph")
    space = make_space(SpaceSection(formats=FORMATS), objective.model)
    encoding, prices = Encoding(space), SpacePrices(objective, space, 0)
    pool = SpacePool(
        space, encoding, functools.partial(price_of_params, objective, space), 0, prices
    )
    names = [f"format.{group.name}" for group in space.groups]
    theta = np.random.default_rng(3).standard_normal(len(encoding.decisions.counted()))
    rows, costs = pool.propose([], theta)
    asked = {tuple(pool.params_of(tuple(row))[name] for name in names) for row in rows.tolist()}
    counted = {pair: i for i, pair in enumerate(encoding.decisions.counted())}
    places = [encoding.places.index(name) for name in names]
    options = [encoding.row(dict.fromkeys(names, each))[places[0]] for each in FORMATS]
    gaps = np.zeros((len(names), len(FORMATS)))
    for group, place in enumerate(places):
        for i, option in enumerate(options):
            if (place, option) in counted:
                gaps[group, i] = np.exp(theta[counted[place, option]])
    for wide, narrow in ((0, len(FORMATS) - 1), (len(FORMATS) - 1, 1)):
        order = np.argsort(gaps[:, wide] - gaps[:, narrow], kind="stable")
        for count in (c for c in KEPT_WIDE if c < len(names)):
            kept = set(order[:count].tolist())
            formats = (FORMATS[wide if g in kept else narrow] for g in range(len(names)))
            assert tuple(formats) in asked, (wide, narrow, count)
    found = pool.exact(rows[:3])
    assert found is not None
    for row, exact, rough in zip(rows[:3].tolist(), found, costs[:3], strict=True):
        params = pool.params_of(tuple(row))
        assert tuple(exact) == price_of(objective, space.policy(params))
        np.testing.assert_allclose(rough, exact, rtol=0.02)


def test_a_cast_goes_with_its_value_and_sources_are_no_moments() -> None:
    """Of each node the live bytes are those of the buffers that live then, summed by layer."""
    objective, *_ = made(DEEP, "torch.eager")
    policy = preset("torch.autocast.bfloat16", objective.model.layer_names)
    graph = apply_policy(objective.task.tracing(objective.model, 64).float32, policy)
    slots = {name: place for place, name in enumerate(objective.model.layer_names)}
    homes = _homes(graph, slots.get, len(slots))
    casts = [node for node in graph.nodes if node.op.converts]
    assert all(homes[node.id] == homes[node.inputs[0]] for node in casts)
    assert any(homes[node.id] != slots.get(node.layer, len(slots)) for node in casts)
    names, live = _live(graph, homes, len(slots))
    lasting = [n for n in graph.nodes if not (n.op.converts or n.op.kind in ("source", "move"))]
    assert [name.split("/")[:3] for name in names] == [
        [node.layer, node.op.name, node.role] for node in lasting
    ]
    assert len(set(names)) == len(names) == len(live)
    every = lives(graph)
    held = [
        sum(life.bytes for life in every if life.first <= node.id <= life.last)
        for node in graph.nodes
    ]
    ends = [node.id + 1 for node in lasting]
    worst = [max(held[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
    np.testing.assert_allclose(live.sum(axis=1), worst)
