"""Which layers of a model share one searched format."""

from __future__ import annotations

from policysearch.nn.model import Model
from policysearch.search.space_section import Group, SpaceSection
from policysearch.values import InputError, one_of


def complete_groups(section: SpaceSection, model: Model) -> tuple[Group, ...]:
    """Return the groups of `section`, with every layer of the model in one of them.

    Raises InputError for a group with a layer the model lacks or that no or two groups name.
    """
    owners = {name for name in model.layer_names if model.parameters_of(name)}
    groups = section.groups or tuple(Group(n, (n,)) for n in model.layer_names if n in owners)
    owner: dict[str, int] = {}
    for index, group in enumerate(groups):
        if not group.layers:
            raise InputError(f"space.groups: {group.name!r} is empty; expected layer names")
        for name in group.layers:
            one_of(f"space.groups: {group.name}", name, model.layer_names)
            if name in owner:
                raise InputError(f"space.groups: {name!r} is in two groups; expected one")
            owner[name] = index
    missing = sorted(owners - owner.keys())
    if missing:
        raise InputError(f"space.groups: no group has {', '.join(missing)}; expected every layer")
    followed = min(owner.values())
    filled: list[list[str]] = [[] for _ in groups]
    for name in model.layer_names:
        followed = owner.get(name, followed)
        filled[followed].append(name)
    return tuple(
        Group(g.name, tuple(sorted(names, key=lambda n: (n not in owners, names.index(n)))))
        for g, names in zip(groups, filled, strict=True)
    )
