"""A net of torch of 42 linear layers in four formats: what 10 and 20 trainings find, of whom.

    python -m benchmarks.search.deep

The net, `nets/torch_modules.py:deep`, comes through the product's importer and is trained on
digits; the one that is priced is as wide as those are that fill the device. 4^42 policies cannot
all be trained. The protocol, written before any was:

- The gaps of one training seed are told, and score. There are three; the mean counts.
- Each policy but float32 is a training. A method that reads float32's run first (`own+probes` and
  those of `guesses.py`) is charged what the product's own probes take; some would take more.
- Integer programs look where volume can be alone: what is faster and smaller than its corner.
- A share is of the volume of all policies that anyone here trained with that seed, and of nothing
  that was not.
- Methods that draw at random do so twice per training seed. The samplers of Optuna have the ladder
  first, as studies have it; ours has it too.
- `own+probes` is what is offered for nets of many layers. It is ahead where its mean is above that
  of every rival, after 10 trainings and after 20.

Trainings are kept in data/deep.csv, and what float32's runs say in data/deep-SEED.npz: a policy
that is there is not trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.search.guesses import GUESSING, guessed_by, guesses, params_of, policy_of
from benchmarks.search.layered import Layered, Trained, studied
from benchmarks.search.rivals import SEARCHING
from benchmarks.search.tables import FOLDER
from benchmarks.timing import pin_one_thread
from policysearch.objective.score import gap
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import Array
from policysearch.study.probes import probe_cost
from policysearch.study.specification import StudySpec, spec_from_text

MODULES = Path(__file__).parent / "nets" / "torch_modules.py"
FORMATS = ("float32", "tfloat32", "bfloat16", "float8_e4m3fn")
BLOCKS = 20
STUDY = """
[study]
name = "deep"

[task]
model = "{modules}:deep"
data = "digits"
loss = "softmax_cross_entropy"
optimizer = "momentum"
learning_rate = 0.02
momentum = 0.9
batch_size = 32
steps = {steps}
tail_steps = {tail}

[task.schedule]
kind = "cosine"
warmup_steps = {warmup}
final_factor = 0.01

[cost]
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 4096
batch_size_reason = "products as large as a language model's"

[cost.net]
model = "{modules}:wide"
inputs = [1, 8, 8]
classes = 10

[space]
formats = {formats}
base = "torch.autocast.bfloat16"
scalings = ["current"]
"""
GROUP = """
[[space.groups]]
name = "{name}"
layers = {layers}
"""

OWN = ("own", "own+probes")
STOCK = ("random", "tpe", "nsga2")
DRAWS = (*STOCK, "policy-gradient")
METHODS = (*OWN, *GUESSING, *SEARCHING, *STOCK)
TRIALS = 20
AT = (3, 5, 10, 20)
"""After so many trainings the volume is told."""

WITHIN = 1e-3
"""Gap in nats within which the fastest policy is told."""


def spec_of(modules: Path = MODULES, blocks: int = BLOCKS, steps: int = 120) -> StudySpec:
    """Return the study of a file's nets; each norm is decided with the layer behind it."""
    named = {"embed": ["embed"]}
    for block in map("blocks.{}".format, range(blocks)):
        named[f"{block}.up"] = [f"{block}.norm", f"{block}.up"]
        named[f"{block}.down"] = [f"{block}.down"]
    named["head"] = ["norm", "head"]
    formats, tail, warmup = json.dumps(FORMATS), max(1, steps // 3), steps // 10
    text = STUDY.format(modules=modules, steps=steps, tail=tail, warmup=warmup, formats=formats)
    for name, layers in named.items():
        text += GROUP.format(name=name, layers=json.dumps(layers))
    return spec_from_text(text, "deep")


class Trainings:
    """Gaps by policy and training seed, kept in a file that grows."""

    def __init__(self, layered: Layered, path: Path) -> None:
        self._layered, self.path = layered, path
        self.known: dict[tuple[str, int], float] = {}
        if path.exists():
            with path.open(newline="") as file:
                rows = csv.reader(file)
                self.known = {(policy, int(seed)): float(found) for policy, seed, found in rows}

    def gap(self, policy: Policy, seed: int) -> float:
        """Return the gap of a policy in nats, trained where it is not known."""
        key = policy.digest[:16], seed
        if key not in self.known:
            objective = self._layered.objective
            run = objective.measure(policy, seed)
            self.known[key] = float(f"{gap(run, objective.baseline(seed)):.6g}")
            with self.path.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow([*key, self.known[key]])
        return self.known[key]


class Grown:
    """Places of policies, numbered as they are asked for, as methods of `rivals.py` want them."""

    def __init__(self, layered: Layered, trainings: Trainings, seed: int) -> None:
        self._layered, self._trainings, self._seed = layered, trainings, seed
        self.decisions, self.measure = layered.encoding.decisions, layered.measure
        self._rows: dict[tuple[int, ...], int] = {}

    def find(self, options: Sequence[int]) -> int:
        return self._rows.setdefault(tuple(options), len(self._rows))

    nearest = find

    def options(self, place: int) -> list[int]:
        return list(list(self._rows)[place])

    def policy(self, place: int) -> Policy:
        """Return the policy at a place."""
        return policy_of(self._layered, self.options(place))

    def time(self, place: int) -> float:
        params = params_of(self._layered, self.options(place))
        return float(self._layered.lookup.costs([params])[0, 0])

    def gap(self, place: int) -> float:
        return self._trainings.gap(self.policy(place), self._seed)

    def cheapest(self) -> int:
        none = np.zeros((1, len(self.decisions.places), len(FORMATS)))
        (params,) = self._layered.lookup.cheapest(0, np.array([[1.0, 0.0]]), none)
        return self.find(self._layered.row(params)[0].tolist())


def searched(places: Grown, name: str, draw: int) -> Iterator[Policy]:
    """Yield what a method of SEARCHING trains; it goes on to learn what came of it."""
    method = SEARCHING[name](places, np.random.default_rng(draw))
    yield from map(places.policy, method)


class Deep:
    """The net, what is known of it, and what each method trains."""

    def __init__(self, spec: StudySpec, folder: Path = FOLDER) -> None:
        self.layered = Layered(spec)
        self.trainings = Trainings(self.layered, folder / "deep.csv")
        self._folder = folder
        self.guess = cache(self._guess)

    def _guess(self, seed: int) -> dict[str, Array]:
        """Return what float32's run says, from the file where it is there."""
        path = self._folder / f"deep-{seed}.npz"
        if not path.exists():
            found: Any = guesses(self.layered, seed)
            np.savez_compressed(path, **found)
        with np.load(path) as data:
            return dict(data)

    @property
    def charge(self) -> float:
        """What probes take, in trainings."""
        return probe_cost(self.layered.space, self.layered.objective.task.steps)

    def trained(self, name: str, seed: int, draw: int = 0, trials: int = TRIALS) -> Trained:
        """Return what a method trains with a training seed, its probes charged."""
        if name in OWN or name in STOCK:
            probed = name == "own+probes"
            found = studied(
                self.layered,
                lambda _, policy: self.trainings.gap(policy, seed),
                trials,
                self.guess(seed)["errors"] if probed else None,
                name if name in STOCK else "gain",
                draw,
            )
            return Trained(found.gaps, found.costs, found.seconds, self.charge if probed else 0.0)
        if name in GUESSING:
            policies = guessed_by(self.layered, name, self.guess(seed))
            return self._in_order(policies, seed, trials, self.charge)
        places = Grown(self.layered, self.trainings, seed)
        return self._in_order(searched(places, name, draw), seed, trials, 0.0)

    def _in_order(
        self, policies: Iterator[Policy], seed: int, trials: int, charged: float
    ) -> Trained:
        found: dict[str, tuple[float, float, float]] = {"": (0.0, 1.0, 1.0)}
        for policy in policies:
            if policy.digest != self.layered.objective.float32.digest:
                point = self.trainings.gap(policy, seed), *self.layered.costs(policy)
                found.setdefault(policy.digest, point)
            if len(found) > trials:
                break
        every = np.array(list(found.values()))
        return Trained(every[:, 0], every[:, 1:], np.zeros(len(every)), charged)


def draws_of(name: str) -> range:
    """Return the draws of a method."""
    return range(2 if name in DRAWS else 1)


def volume(deep: Deep, trained: Sequence[Trained]) -> float:
    """Return the volume that all of it dominates together."""
    gaps, costs = (np.concatenate([getattr(t, n) for t in trained]) for n in ("gaps", "costs"))
    return deep.layered.measure.volume(gaps, costs)


def shares(
    deep: Deep, by_name: Mapping[str, Sequence[Trained]], at: Sequence[int] = AT
) -> dict[str, Array]:
    """Return by method the shares [draws, at] of the volume of all that was trained."""
    whole = volume(deep, [t for each in by_name.values() for t in each])
    return {
        name: np.array([[volume(deep, [t.paid(n)]) / whole for n in at] for t in each])
        for name, each in by_name.items()
    }


def main() -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of training")
    options = parser.parse_args()
    pin_one_thread()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    deep = Deep(spec_of())
    found: dict[str, list[Array]] = {name: [] for name in METHODS}
    speeds: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in options.seeds:
        trained = {
            name: [deep.trained(name, seed, draw) for draw in draws_of(name)] for name in METHODS
        }
        for name, each in shares(deep, trained).items():
            found[name].append(each.mean(axis=0))
            speeds[name] += [t.paid(TRIALS).fastest(WITHIN) for t in trained[name]]
    print(f"share of the volume after {AT} trainings, mean of seeds {options.seeds}, and of each")
    print(f"after {AT[-2:]}; the fastest within {WITHIN:g} nats, over float32")
    for name, rows in found.items():
        said = [" ".join(f"{share:.3f}" for share in np.mean(rows, axis=0))]
        said += [" ".join(f"{share:.3f}" for share in row[-2:]) for row in rows]
        print(f"{name:18} {' | '.join(said)} | {np.mean(speeds[name]):.2f}x", flush=True)


if __name__ == "__main__":
    main()
