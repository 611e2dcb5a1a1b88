"""The space of a study, with the ways to spread a step that it searches."""

from __future__ import annotations

from policysearch.nn.model import Model
from policysearch.search.parallel_space import spread_space
from policysearch.search.space import Space, make_space
from policysearch.search.spec import StudySpec


def space_of(spec: StudySpec, model: Model | None = None) -> Space:
    """Return the space of a study file; its model is made where it is not given."""
    made = model or spec.task.build_model(spec.task.load_dataset())
    space = make_space(spec.space, made, spec.rules, spec.study.target, spec.task.steps)
    return spread_space(space, spec.parallel)
