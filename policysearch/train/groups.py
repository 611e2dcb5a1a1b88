"""Parameter groups: parameters with a rate or decay of their own, and frozen ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from policysearch.graph import Graph, Shape
from policysearch.nn.model import ParameterSpec
from policysearch.ops.builder import Builder
from policysearch.ops.source import LEARNING_RATE, RATE_FACTOR, data
from policysearch.optimizers.optimizer import Optimizer, rules, trained
from policysearch.values import InputError, number, one_of, shown


@dataclass(frozen=True)
class Group:
    """Parameters that are not trained as the others are: those whose names a pattern matches.

    In the patterns of `match` a `*` is any characters, dots too, `?` is one, and `[ab]` one of
    those; the names are those of the net ("blocks.0.norm.weight"). No parameter may be in two
    groups, and none may be empty. `rate_factor` multiplies the learning rate. `weight_decay` is in
    place of the task's, for all of the group whatever `weight_decay_for` says; left out, it is
    the task's. `optimizer` moves the group, with the task's settings, in place of the task's: with
    "muon", embeddings and heads, which are matrices too, are usually "adamw"'s. `frozen`
    parameters have no gradient and no state and are never updated.
    """

    match: tuple[str, ...]
    rate_factor: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False
    optimizer: str = ""

    def __post_init__(self) -> None:
        if not self.match or not all(self.match):
            raise InputError(f"match: {list(self.match)}; expected patterns of parameter names")
        number("rate_factor", self.rate_factor, 0.0, 1e6)
        if self.weight_decay is not None:
            number("weight_decay", self.weight_decay, 0.0, 1e6)
        if self.optimizer:
            one_of("optimizer", self.optimizer, trained())
        others = self.rate_factor != 1.0 or self.weight_decay is not None or self.optimizer
        if self.frozen and others:
            raise InputError(
                "frozen: true beside rate_factor, weight_decay or optimizer; expected it without"
            )

    def holds(self, name: str) -> bool:
        """Return whether the parameter of this name is in the group."""
        return any(fnmatchcase(name, pattern) for pattern in self.match)

    def moved_by(self, of_task: Optimizer) -> Optimizer:
        """Return the optimizer of the group: that of the task, but for what the group says."""
        if self.optimizer:
            reads = "nesterov" in rules()[self.optimizer].reads
            nesterov = of_task.nesterov and reads
            of_task = replace(of_task, kind=self.optimizer, nesterov=nesterov)
        if self.weight_decay is None:
            return of_task
        return replace(of_task, weight_decay=self.weight_decay, decays="all")

    @property
    def words(self) -> str:
        """What sets the group apart, in a few words."""
        return f"{', '.join(self.match)}: {self.said}"

    @property
    def said(self) -> str:
        """What is its own."""
        said = ["frozen"] if self.frozen else []
        said += [f"rate x {self.rate_factor:g}"] if self.rate_factor != 1.0 else []
        said += [self.optimizer] * bool(self.optimizer)
        said += [f"weight decay {self.weight_decay:g}"] if self.weight_decay is not None else []
        return ", ".join(said) or "as the others"


def by_parameter(groups: Sequence[Group], specs: Sequence[ParameterSpec]) -> dict[str, Group]:
    """Return the group of every parameter, of these, that is in one.

    InputError for a parameter in two groups, for a group without any, and where none is trained.
    """
    found: dict[str, Group] = {}
    places: dict[str, int] = {}
    known = [spec.name for spec in specs]
    for place, group in enumerate(groups):
        held = [name for name in known if group.holds(name)]
        if not held:
            given = f"task.groups[{place}]: match {shown(', '.join(group.match))}"
            raise InputError(f"{given} is no parameter's name; expected one of {_some(known)}")
        for name in held:
            if name in found:
                raise InputError(
                    f"task.groups[{place}]: parameter {name!r} is in groups[{places[name]}] too; "
                    "expected it in one group"
                )
            found[name], places[name] = group, place
    frozen = {name for name, group in found.items() if group.frozen}
    if frozen and all(spec.name in frozen or not spec.trained for spec in specs):
        raise InputError("task.groups: every parameter is frozen; expected one that is trained")
    return found


def rate_and_decay(group: Group | None, optimizer: Optimizer, axes: int) -> tuple[float, float]:
    """Return the factor of the rate and the weight decay of a parameter with so many axes."""
    by = group.moved_by(optimizer) if group else optimizer
    decay = by.weight_decay if by.decays == "all" or axes > 1 else 0.0
    return group.rate_factor if group else 1.0, decay


def parameter_groups(
    graph: Graph, grouped: Mapping[str, Group], optimizer: Optimizer
) -> tuple[tuple[Shape, ...], ...]:
    """Return the shapes of the parameters that a step updates, by the groups torch has of them.

    Those are parameters of one rate and one weight decay.
    """
    held: dict[tuple[float, float], list[Shape]] = {}
    for node in (graph.nodes[old] for old, _ in graph.updates):
        if node.op.name == "parameter":
            kind = rate_and_decay(grouped.get(node.name), optimizer, len(node.shape))
            held.setdefault(kind, []).append(node.shape)
    return tuple(map(tuple, held.values()))


def _some(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def emit_rates(b: Builder, groups: Mapping[str, Group]) -> dict[float, int]:
    """Emit a source for the learning rate of every factor of `groups` but 1; return them by factor.

    Each is fed: torch multiplies rates as float64, and a product in the graph would round twice.
    """
    factors = sorted({group.rate_factor for group in groups.values() if not group.frozen} - {1.0})
    return {
        factor: b.emit(
            data,
            attrs={"shape": (), RATE_FACTOR: factor},
            name=f"{LEARNING_RATE}*{factor!r}",
            role="input",
        )
        for factor in factors
    }
