"""The search space: which decisions a trial makes, and the policy they add up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Protocol

from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, with_accumulator
from policysearch.policy.presets import layer_named, preset
from policysearch.rewrite.format_rules import PlacedRule
from policysearch.space.decided.base import Group, Params, Setting, nearest
from policysearch.space.decided.loss_scales import Scale
from policysearch.space.decided.products import check_accumulators, takes_operands
from policysearch.space.equivalence import acting, canonical
from policysearch.space.section import ALL_UNIFORM, DECIDED, DEVICE, UNIFORM, SpaceSection
from policysearch.space.target import as_run

WHOLE = "log2_scale"
"""The decision whose values are whole numbers in a row, which samplers may interpolate."""


def _bits(name: str) -> int:
    return format_named(layer_named(name).compute).bits


class Trial(Protocol):
    """What decides when it is asked, as a trial of Optuna does."""

    def suggest_int(self, name: str, low: int, high: int) -> int: ...

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any: ...


@dataclass(frozen=True)
class Space:
    """The decisions offered for one model; every trial makes all of them.

    A flat space, because samplers learn little from decisions that exist in some trials only:
    what a policy does not use (the scale of loss-scale kind "none") is dropped in `policy`.
    `steps` are those of the run, `op_layers` the layers that use an op of the section; None where
    not known. `rivals` are presets that one switch of the device gives: they are tried with the
    ladder, whether it names them or not, unless the accumulator cannot take their operands.
    `recipes` are the presets that the word "device" of a ladder means.
    """

    section: SpaceSection
    layers: tuple[str, ...]
    groups: tuple[Group, ...]
    base: Policy
    rules: tuple[PlacedRule, ...] = ()
    model: Model | None = None
    target: str | None = None
    steps: int | None = None
    op_layers: Mapping[str, tuple[str, ...]] | None = None
    rivals: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()

    @cached_property
    def setting(self) -> Setting:
        """What every kind of decision is told of the space."""
        known = self.rules, self.steps, self.op_layers
        return Setting(self.layers, self.groups, self.base, *known)

    def offered(self) -> dict[str, tuple[Any, ...]]:
        """Return the values of every decision by name, those with a single one included."""
        return {
            name: values
            for kind in DECIDED
            for name, values in kind.choices(self.section, self.setting).items()
        }

    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Return the valid values of every decision, by parameter name."""
        return {name: values for name, values in self.offered().items() if len(values) > 1}

    def suggest(self, trial: Trial) -> Params:
        """Return the trial's decision for every parameter; the trial may be Optuna's."""
        params: Params = {}
        for name, values in self.choices().items():
            if name == WHOLE:
                params[name] = trial.suggest_int(name, values[0], values[-1])
            else:
                params[name] = trial.suggest_categorical(name, list(values))
        return params

    def policy(self, params: Params) -> Policy:
        """Return the complete policy of these decisions, named by `describe`.

        Decisions that make no difference make no other policy; see `canonical`.
        """
        policy = self.base
        for kind in DECIDED:
            policy = kind.applied(policy, params, self.section, self.setting)
        policy = self._as_run(canonical(policy, self.steps, self.op_layers))
        return replace(policy, name=self.describe(policy))

    def loss_scale(self, params: Params) -> LossScale:
        """Return the loss scale of these decisions, whether or not it acts."""
        return Scale().applied(self.base, params, self.section, self.setting).loss_scale

    def ladder(self, baseline: str | None = None) -> dict[str, tuple[Policy, tuple[str, ...]]]:
        """Return what is tried first, by digest, each with the presets that it is.

        That is float32, the preset `baseline`, the rivals and the ladder; what trains alike
        here is one of them. Raises InputError where
        the first accumulator of the section cannot take the operands of one that a file names.
        """
        ladder: dict[str, tuple[Policy, tuple[str, ...]]] = {}
        alike: dict[str, str] = {}
        rivals = (name for name in self.rivals if takes_operands(self.preset(name)))
        first = ("float32", *([baseline] if baseline else []), *rivals)
        said = (self.recipes if name == DEVICE else (name,) for name in self.section.ladder)
        for name in dict.fromkeys((*first, *chain.from_iterable(said))):
            uniform = name in (UNIFORM, ALL_UNIFORM)
            known_as = () if uniform else (name,)
            for policy in self.uniform() if uniform else [self.preset(name)]:
                check_accumulators(policy)
                digest = alike.setdefault(acting(policy, self.model).digest, policy.digest)
                met, others = ladder.get(digest, (policy, ()))
                ladder[digest] = met, (*others, *known_as)
        return ladder

    def preset(self, name: str) -> Policy:
        """Return the preset as it is tried here: summed in the first accumulator offered."""
        policy, summed = preset(name, self.layers), self.section.accumulators[0]
        # A preset may say how it sums; only what the study offers first speaks against that.
        return self._as_run(policy if summed == "float32" else with_accumulator(policy, summed))

    def _as_run(self, policy: Policy) -> Policy:
        return policy if self.model is None else as_run(policy, self.model, self.target)

    def of_one_layer(self, name: str) -> Space:
        """Return this space for one layer, in a group of its own name: of no model or target."""
        groups, base = (Group(name, (name,)),), preset(self.section.base, (name,))
        one = replace(self, layers=(name,), groups=groups, base=base, rules=())
        return replace(one, model=None, target=None, op_layers=None)

    def uniform(self) -> list[Policy]:
        """Return each format on every layer with each choice of master weights, widest first.

        Without them, with each choice of how updates are rounded.

        Everything else is the first that the section offers. float32 is left out: the ladder has
        it as the preset.
        """
        formats = sorted(self.section.formats, key=lambda name: -_bits(name))
        modes = self.section.update_roundings
        return [
            self.policy(
                {f"format.{g.name}": name for g in self.groups}
                | {"master_weights": masters, "update_rounding": mode}
            )
            for name in formats
            if name != "float32"
            for masters in self.section.master_weights
            for mode in (modes[:1] if masters else modes)
        ]

    def describe(self, policy: Policy) -> str:
        """Return a short name: the formats group by group, then what is not the default."""
        return " ".join(
            word for kind in DECIDED for word in kind.words(policy, self.section, self.setting)
        )

    def project(self, policy: Policy) -> Params:
        """Return the decisions nearest to `policy`, so that a sampler can learn from its result.

        The policy itself is what gets trained; these only place it in the space.
        """
        wanted: Params = {}
        for kind in DECIDED:
            wanted |= kind.read(policy, self.section, self.setting)
        choices = self.choices()
        return {name: nearest(wanted[name], values) for name, values in choices.items()}
