"""The digest of a policy: every field but the name counts, nested ones too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from policysearch.formats import Rounding
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Phase, Policy, RoleRounding, from_json
from policysearch.policy.products import Operand, Product, Products
from policysearch.policy.scaling import Scaling
from policysearch.values import choices

POLICY = Policy(
    "full",
    (("fc1", LayerPolicy("float16", "bfloat16")), ("fc2", LayerPolicy())),
    ("matmul",),
    ("softmax",),
    ("relu",),
    loss_scale=LossScale("schedule", 8.0, schedule=((0, 8.0), (5, 4.0))),
    scaling=Scaling("current"),
    phases=(Phase(3, (("fc1", LayerPolicy("bfloat16")),)),),
    parallel=Parallel(devices=2),
)
Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of everything in `value`: fields by name, items by number."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from places(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple) and value:
        for index, item in enumerate(value):
            yield from places(item, (*path, index))
    else:
        yield path


def at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key] if isinstance(key, int) else getattr(value, key)
    return value


def with_value(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of `value` with `new` at `path`."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(key, int):
        return (*value[:key], with_value(value[key], rest, new), *value[key + 1 :])
    # A schedule belongs to its kind alone.
    freed: dict[str, Any] = {}
    if isinstance(value, LossScale) and key == "kind":
        freed = {"schedule": ()}
    if isinstance(value, Scaling) and key in ("weights", "hadamard", "tensor", "four_over_six"):
        freed = {"recipe": "nvfp4"}  # of the recipes, one has them all
    return dataclasses.replace(value, **{key: with_value(getattr(value, key), rest, new), **freed})


def other(path: Path) -> Any:
    """Return a valid value that is not the one at `path`."""
    old = at(POLICY, path)
    owner, name = at(POLICY, path[:-1]), path[-1]
    hints = get_type_hints(type(owner), include_extras=True)
    if names := choices(hints[name]) if isinstance(name, str) else ():
        return next(choice for choice in names if choice != old)
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return old + 1 if isinstance(old, int) else old / 2 or 1.0
    if old is None and isinstance(owner, Products):
        product = Product(Operand("bfloat16"), Operand("float8_e5m2"))
        return product
    if old is None and isinstance(owner, LayerPolicy):
        return Scaling("rowwise") if name == "scaling" else "tfloat32"
    if old is None:
        return 2.0
    if isinstance(old, tuple):
        return ((9, 2.0),)
    if isinstance(owner, LayerPolicy):
        return "chunked:64:float16" if name == "accumulator" else "tfloat32"
    if name == "second_moment":
        return "float16"
    # A layer that a phase names has to be there.
    return "fc2" if path[0] == "phases" else "float16" if old == "float32" else f"{old}_other"


def changed(path: Path) -> Policy:
    """Return POLICY with another value at `path`."""
    policy = with_value(POLICY, path, other(path))
    assert isinstance(policy, Policy)
    return policy


# A name that a phase speaks of cannot change alone.
PHASED = ("layers", 0, 0)
PATHS = [path for path in places(POLICY) if path not in (("version",), PHASED)]


def test_the_places_are_those_of_every_dataclass_inside() -> None:
    classes = (Policy, LayerPolicy, LossScale, Scaling, RoleRounding, Rounding, Phase)
    reached = {key for path in PATHS for key in path}
    fields = {field.name for owner in classes for field in dataclasses.fields(owner)}
    assert reached >= fields - {"version"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_policy_changes_the_digest_but_the_name(path: Path) -> None:
    policy = changed(path)
    assert policy != POLICY
    assert (policy.digest == POLICY.digest) == (path == ("name",))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_every_field_of_a_policy_is_written_and_read(path: Path) -> None:
    policy = changed(path)
    again = from_json(policy.to_json())
    assert again == policy != POLICY
    assert at(again, path) == other(path) != at(POLICY, path)


@pytest.mark.parametrize(
    "value", [POLICY, POLICY.layers[0][1], POLICY.loss_scale, POLICY.rounding, POLICY.phases[0]]
)
def test_values_cannot_be_changed_in_place(value: Any) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
