"""The search space: which decisions a trial makes, and the policy they add up to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import BaseTrial

from policysearch.accumulators import accumulator_named
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.policy import (
    LayerPolicy,
    LossScale,
    Policy,
    uniform_layer,
    with_accumulator,
)
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Recipe, Scaling
from policysearch.products.product import product
from policysearch.rewrite.format_rules import FormatRule
from policysearch.rewrite.placed_rules import PlacedRule, apply_format_rules
from policysearch.search.groups import complete_groups
from policysearch.search.rules import nearest_option, rules_for
from policysearch.search.space_section import UNIFORM, Group, SpaceSection
from policysearch.search.target import as_run, offered
from policysearch.values import InputError

Params = dict[str, Any]

USUAL_SCALING: Recipe = "delayed"
"""How operands below 16 bits are scaled where neither the study nor its base says so.

Of the recipes with one scale per tensor it takes the fewest passes over the operands.
"""


@dataclass(frozen=True)
class Space:
    """The decisions offered for one model; every trial makes all of them.

    A flat space, because samplers learn little from decisions that exist in some trials only:
    what a policy does not use (the scale of loss-scale kind "none") is dropped in `policy`.
    """

    section: SpaceSection
    layers: tuple[str, ...]
    groups: tuple[Group, ...]
    base: Policy
    rules: tuple[PlacedRule, ...] = ()
    model: Model | None = None
    target: str | None = None

    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Return the valid values of every decision, by parameter name."""
        section = self.section
        powers = tuple(range(section.log2_scale[0], section.log2_scale[1] + 1))
        every = {
            **{f"format.{group.name}": section.formats for group in self.groups},
            **{f"op.{op}": ("low", "fp32") for op in section.ops},
            "master_weights": section.master_weights,
            "optimizer_state": section.optimizer_states,
            "loss_scale": section.loss_scales,
            "log2_scale": powers if set(section.loss_scales) != {"none"} else (),
            "growth_interval": section.growth_intervals,
            "accumulator": section.accumulators,
            "scaling": section.scalings,
            **{f"rule.{each.name}": each.rule.options for each in self.rules},
        }
        return {name: values for name, values in every.items() if len(values) > 1}

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return every decision as Optuna describes it, as `suggest` asks for it."""
        return {
            name: IntDistribution(values[0], values[-1])
            if name == "log2_scale"
            else CategoricalDistribution(values)
            for name, values in self.choices().items()
        }

    def suggest(self, trial: BaseTrial) -> Params:
        """Return the trial's decision for every parameter."""
        params: Params = {}
        for name, values in self.choices().items():
            if name == "log2_scale":
                params[name] = trial.suggest_int(name, values[0], values[-1])
            else:
                params[name] = trial.suggest_categorical(name, list(values))
        return params

    def policy(self, params: Params) -> Policy:
        """Return the complete policy of these decisions, named by `describe`."""
        section, base = self.section, self.base
        master = params.get("master_weights", section.master_weights[0])
        layers = {
            layer: _layer(params.get(f"format.{group.name}", section.formats[0]), master)
            for group in self.groups
            for layer in group.layers
        }
        placed = {op: params.get(f"op.{op}", "low") for op in section.ops}
        policy = dataclasses.replace(
            base,
            layers=tuple((name, layers[name]) for name in self.layers),
            low_precision_ops=_placed(base.low_precision_ops, placed, "low"),
            fp32_ops=_placed(base.fp32_ops, placed, "fp32"),
            promote_ops=_placed(base.promote_ops, placed, "promote"),
            master_weights=master,
            optimizer_state=params.get("optimizer_state", section.optimizer_states[0]),
            loss_scale=self._loss_scale(params),
        )
        policy = with_accumulator(
            self._ruled(policy, params), params.get("accumulator", section.accumulators[0])
        )
        # again, for rules that name the accumulator of their layers
        policy = self._ruled(policy, params)
        policy = dataclasses.replace(policy, scaling=self._scaling(params, policy))
        policy = self._as_run(policy)
        return dataclasses.replace(policy, name=self.describe(policy))

    def ladder(self, baseline: str | None = None) -> dict[str, tuple[Policy, tuple[str, ...]]]:
        """Return what is tried first, by digest, each with the presets that it is.

        That is float32, the preset `baseline` and the ladder. Raises InputError where the first
        accumulator of the section cannot take the operands of one.
        """
        found: dict[str, tuple[Policy, tuple[str, ...]]] = {}
        first = ("float32", *([baseline] if baseline else []))
        for name in dict.fromkeys((*first, *self.section.ladder)):
            known_as = () if name == UNIFORM else (name,)
            for policy in self.uniform() if name == UNIFORM else [self.preset(name)]:
                check_accumulators(policy)
                met, others = found.get(policy.digest, (policy, ()))
                found[policy.digest] = met, (*others, *known_as)
        return found

    def preset(self, name: str) -> Policy:
        """Return the preset as it is tried here: summed in the first accumulator offered."""
        summed = with_accumulator(preset(name, self.layers), self.section.accumulators[0])
        return self._as_run(summed)

    def _as_run(self, policy: Policy) -> Policy:
        return policy if self.model is None else as_run(policy, self.model, self.target)

    def uniform(self) -> list[Policy]:
        """Return each format on every layer with each choice of master weights, widest first.

        Everything else is the first that the section offers. float32 is left out: the ladder has
        it as the preset.
        """
        formats = sorted(self.section.formats, key=lambda name: -format_named(name).bits)
        return [
            self.policy({f"format.{g.name}": name for g in self.groups} | {"master_weights": kept})
            for name in formats
            if name != "float32"
            for kept in self.section.master_weights
        ]

    def _ruled(self, policy: Policy, params: Params) -> Policy:
        chosen = {each.name: params.get(f"rule.{each.name}") for each in self.rules}
        given = {name: option for name, option in chosen.items() if option is not None}
        return apply_format_rules(policy, self.rules, given)

    def _scaling(self, params: Params, policy: Policy) -> Scaling:
        given = self.base.scaling
        usual = given.recipe if given.recipe != "none" else USUAL_SCALING
        recipe = params.get("scaling", (*self.section.scalings, usual)[0])
        scaling = given if recipe == given.recipe else Scaling(recipe)
        chosen = {layer.compute for _, layer in policy.layers}
        return scaling if min(format_named(f).bits for f in chosen) < 16 else Scaling()

    def _loss_scale(self, params: Params) -> LossScale:
        section = self.section
        kind = params.get("loss_scale", section.loss_scales[0])
        if kind == "none":
            return LossScale()
        scale = 2.0 ** params.get("log2_scale", section.log2_scale[0])
        if kind == "fixed":
            return LossScale(kind, scale)
        interval = params.get("growth_interval", section.growth_intervals[0])
        return LossScale(kind, scale, growth_interval=interval)

    def describe(self, policy: Policy) -> str:
        """Return a short name: the formats group by group, then what is not the default."""
        layers = dict(policy.layers)
        formats = [short_format(layers[group.layers[0]].compute) for group in self.groups]
        words = [formats[0] if len(set(formats)) == 1 else "/".join(formats)]
        words += [f"{op}:fp32" for op in self.section.ops if op in policy.fp32_ops]
        if not policy.master_weights:
            words.append("no-master")
        if policy.optimizer_state != "float32":
            words.append(f"state:{short_format(policy.optimizer_state)}")
        if len(self.section.scalings) > 1:
            words.append(policy.scaling.recipe)
        if len(self.section.accumulators) > 1:
            words += sorted({layer.accumulator for layer in layers.values()} - {"float32"})
        if policy.loss_scale.kind != "none":
            words.append(f"{policy.loss_scale.kind}:{policy.loss_scale.init_scale:g}")
        return " ".join(words)

    def project(self, policy: Policy) -> Params:
        """Return the decisions nearest to `policy`, so that a sampler can learn from its result.

        The policy itself is what gets trained; these only place it in the space.
        """
        layers = dict(policy.layers)
        scale = policy.loss_scale
        wanted: Params = {
            f"format.{group.name}": layers[group.layers[0]].compute for group in self.groups
        }
        for op in self.section.ops:
            wanted[f"op.{op}"] = "low" if op in policy.low_precision_ops else "fp32"
        wanted |= {
            "master_weights": policy.master_weights,
            "optimizer_state": policy.optimizer_state,
            "loss_scale": scale.kind,
            "log2_scale": round(math.log2(scale.init_scale)),
            "growth_interval": scale.growth_interval,
            "accumulator": next(
                (layer.accumulator for layer in layers.values() if layer.compute != "float32"), ""
            ),
            "scaling": policy.scaling.recipe,
        }
        wanted |= {f"rule.{each.name}": nearest_option(each, policy) for each in self.rules}
        choices = self.choices()
        return {name: _nearest(name, wanted[name], values) for name, values in choices.items()}


def make_space(
    section: SpaceSection,
    model: Model,
    rules: Sequence[FormatRule] = (),
    target: str | None = None,
) -> Space:
    """Return the space of `section` for `model`, every policy of it as `rules` leave it.

    With a `target` of the exporters every policy is as that target runs it.

    Raises InputError for a group with a layer the model lacks or that no or two groups name, and
    for a rule that matches nothing.
    """
    section = offered(section, model, target)
    groups = complete_groups(section, model)
    names = model.layer_names
    base, placed = preset(section.base, names), rules_for(rules, model)
    space = Space(section, names, groups, base, placed, model, target)
    for accumulator in section.accumulators:
        for name in section.formats:
            formats = {f"format.{group.name}": name for group in groups}
            check_accumulators(space.policy({**formats, "accumulator": accumulator}))
    for each in space.rules:
        for option in each.rule.options:
            check_accumulators(space.policy({f"rule.{each.name}": option}))
    return space


def check_accumulators(policy: Policy) -> None:
    """Raise InputError where a layer's accumulator cannot take its operands' formats."""
    for layer in {layer for _, layer in policy.layers}:
        row, compute = accumulator_named(layer.accumulator), format_named(layer.compute)
        try:
            product(row, compute)
            product(row, (compute, format_named(layer.grad)))
        except InputError as error:
            raise InputError(f"space.accumulators: {policy.name}: {error}") from None


def short_format(name: str) -> str:
    """Return the name as it is said in tables: fp32, tf32, bf16, fp16, e4m3."""
    known = {"float32": "fp32", "tfloat32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
    return known.get(name) or name.removesuffix("fn").rpartition("_")[2]


def _layer(name: str, master: bool) -> LayerPolicy:
    storage = name if format_named(name).bits >= 16 else "bfloat16"
    return uniform_layer(name, param="float32" if master else storage)


def _placed(ops: tuple[str, ...], placed: dict[str, str], where: str) -> tuple[str, ...]:
    kept = [op for op in ops if op not in placed]
    return tuple(kept + [op for op, place in placed.items() if place == where])


def _nearest(name: str, wanted: Any, values: tuple[Any, ...]) -> Any:
    if wanted in values:
        return wanted
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return min(values, key=lambda value: (abs(value - wanted), value))
    if name.startswith("format.") or name == "optimizer_state":
        bits = format_named(wanted).bits
        return min(values, key=lambda name: abs(format_named(name).bits - bits))
    return values[0]
