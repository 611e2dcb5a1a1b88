"""Policies as the export target of a study runs them."""

from __future__ import annotations

from dataclasses import replace

from policysearch.export.targets import Target, target_named
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.search.space_section import SpaceSection
from policysearch.values import InputError


def as_run(policy: Policy, model: Model, target: str | None) -> Policy:
    """Return the policy that `target` obeys when it is given this one; None obeys any as it is."""
    return policy if target is None else target_named(target).runs(policy, model)


def offered(section: SpaceSection, model: Model, target: str | None) -> SpaceSection:
    """Return the section with the formats and the accumulator that the target can express.

    InputError where none of the formats is left.
    """
    if target is None:
        return section
    there = target_named(target)
    kept = tuple(name for name in section.formats if _is_offered(name, model, there))
    if not kept:
        given = f"{list(section.formats)} with study.target {target!r}"
        raise InputError(f"space.formats: {given}; expected one or more that it runs")
    return replace(section, formats=kept, accumulators=("float32",), scalings=())


def _is_offered(name: str, model: Model, target: Target) -> bool:
    types = model.layer_types
    return any(target.offers(uniform_layer(name), types.get(x, "")) for x in model.layer_names)


def differences(policy: Policy, model: Model, target: str) -> tuple[str, ...]:
    """Return what the target does otherwise than the policy says, and than it would train here.

    What is left to the user's module and training loop is not among it.
    """
    there = target_named(target)
    left = there.losses(there.runs(policy, model), model)
    return tuple(line for line in there.losses(policy, model) if line not in left)
