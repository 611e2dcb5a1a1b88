"""The price table of a space: every assignment of its formats to its groups, by lookup."""

from __future__ import annotations

import numpy as np

from policysearch.cost.tables import Choices, PriceTable, price_table
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.search.space import Params, Space


def format_table(
    objective: Objective, space: Space, given: Params, rng: np.random.Generator
) -> PriceTable:
    """Return the modeled prices of all formats on all groups; `given` are the other decisions.

    Slot i is the i-th group of the space and option j the j-th of its formats.
    """
    slots = {layer: i for i, group in enumerate(space.groups) for layer in group.layers}

    def graph_of(choices: Choices) -> Graph:
        return objective.step_graph(space.policy(given | formats_of(space, choices)))

    counts = [len(space.section.formats)] * len(space.groups)
    return price_table(graph_of, counts, slots.get, objective.device, objective.stack, rng)


def formats_of(space: Space, choices: Choices) -> Params:
    """Return the decisions that an assignment of formats to groups is."""
    formats = space.section.formats
    chosen = zip(space.groups, choices, strict=True)
    return {f"format.{group.name}": formats[option] for group, option in chosen}
