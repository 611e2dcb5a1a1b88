"""Optuna's samplers by name, and a space as Optuna describes it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from policysearch.space.space import WHOLE, Space
from policysearch.values import InputError, one_of

# Optuna's default population of 50 is random search until trial 50.
NSGA2_POPULATION = 16


def _random(seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


def _tpe(seed: int) -> BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, multivariate=True)


def _nsga2(seed: int) -> BaseSampler:
    return optuna.samplers.NSGAIISampler(seed=seed, population_size=NSGA2_POPULATION)


def _gp(seed: int) -> BaseSampler:
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "sampler 'gp': needs torch, which is not installed; expected "
            "pip install 'policysearch[torch]', or one of random, tpe, nsga2"
        )
    return optuna.samplers.GPSampler(seed=seed)


STOCK: Mapping[str, Callable[[int], BaseSampler]] = MappingProxyType(
    {"random": _random, "tpe": _tpe, "nsga2": _nsga2, "gp": _gp}
)

OWN = "gain"
"""The sampler that knows prices and learns the loss gap alone; see `study.gain_sampler`."""

SAMPLERS = (OWN, *STOCK)
"""What a study file may name."""


def sampler_named(name: str, seed: int) -> BaseSampler:
    """Return a fresh sampler of Optuna; InputError for an unknown name or a missing extra.

    `random`, `tpe` (multivariate), `nsga2` (population 16) and `gp` (expected hypervolume
    improvement of a Gaussian process).
    """
    one_of("sampler", name, STOCK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return STOCK[name](seed)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return every decision of `space` as Optuna describes it, as `Space.suggest` asks for it."""
    return {
        name: IntDistribution(values[0], values[-1])
        if name == WHOLE
        else CategoricalDistribution(values)
        for name, values in space.choices().items()
    }


def system_attrs(name: str, index: int) -> dict[str, int]:
    """Return what the sampler keeps with the trial at place `index` of those it is shown.

    NSGA-II numbers generations: as many trials each as its population has, in their order.
    """
    if name != "nsga2":
        return {}
    key = optuna.samplers.NSGAIISampler._get_generation_key()
    return {key: index // NSGA2_POPULATION}
