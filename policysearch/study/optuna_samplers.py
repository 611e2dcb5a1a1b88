"""Optuna's samplers by name, and a space as Optuna describes it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler

from policysearch.space.space import WHOLE, Space
from policysearch.values import InputError, one_of

# Optuna's default population of 50 is random search until trial 50.
NSGA2_POPULATION = 16


@dataclass(frozen=True)
class Stock:
    """A sampler of Optuna: what it is, and what makes it from a seed.

    `needs` is a package that it needs beyond those of this one, `install` what brings that. It
    numbers generations of `population` trials each, 0 for none.
    """

    name: str
    about: str
    make: Callable[[int], BaseSampler]
    needs: str = ""
    install: str = ""
    population: int = 0


_of = optuna.samplers

STOCK: Mapping[str, Stock] = MappingProxyType(
    {
        row.name: row
        for row in (
            Stock("random", "each decision at random", lambda seed: _of.RandomSampler(seed=seed)),
            Stock(
                "tpe",
                "tree-structured Parzen estimator, of all decisions together",
                lambda seed: _of.TPESampler(seed=seed, multivariate=True),
            ),
            Stock(
                "nsga2",
                f"genetic, in generations of {NSGA2_POPULATION}",
                lambda seed: _of.NSGAIISampler(seed=seed, population_size=NSGA2_POPULATION),
                population=NSGA2_POPULATION,
            ),
            Stock(
                "gp",
                "expected hypervolume improvement of a Gaussian process",
                lambda seed: _of.GPSampler(seed=seed),
                needs="torch",
                install="'policysearch[torch]'",
            ),
        )
    }
)
"""The samplers of Optuna by name."""

OWN = "gain"
"""The sampler that knows prices and learns the loss gap alone; see `study.gain_sampler`."""

SAMPLERS = (OWN, *STOCK)
"""What a study file may name."""


def sampler_named(name: str, seed: int) -> BaseSampler:
    """Return a fresh sampler of Optuna; InputError for an unknown name or a missing extra."""
    row = STOCK[one_of("sampler", name, STOCK)]
    if row.needs and importlib.util.find_spec(row.needs) is None:
        others = ", ".join(other.name for other in STOCK.values() if not other.needs)
        raise InputError(
            f"sampler {name!r}: needs {row.needs}, which is not installed; expected "
            f"pip install {row.install}, or one of {others}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return row.make(seed)


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
    population = STOCK[name].population if name in STOCK else 0
    if not population:
        return {}
    key = optuna.samplers.NSGAIISampler._get_generation_key()
    return {key: index // population}
