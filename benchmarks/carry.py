"""What `carry` says of families of nets, each from a quarter of the width, or fewer blocks.

    python -m benchmarks.carry --families tanh adamw noisy --policies 8 --own

A study of the small net is run, then what may be on the large net's front is carried there, and
some of it trained. Prints the verdict, the numbers behind it and the seconds of each family. With
`--own` the large net has a study of its own budget as well, and all of the small study is trained
there: printed is the share that what is carried holds of the volume that all dominate, and how
much that is of what the large net's own study found. Exits with 1 where fewer than six families
have a front of four, fewer than three of them carry, no GPT or no tanh MLP does, one that does
holds less than .95 of the large net's own volume, or a family that is to be refused carries.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.timing import pin_one_thread
from policysearch import api
from policysearch.report.carried_page import carried_page
from policysearch.search.acquisition import yardstick
from policysearch.space.rules_file import rules_file_of
from policysearch.study.questions.carry import Carried, comparable
from policysearch.study.results.gain import ladder_costs
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, objective_of, spec_from_text

SHARE = 0.25

FEWEST_OF_FRONT = 4
"""A smaller front says nothing of how well fronts carry."""

HELD = 0.95
"""So much of the volume that the large net's own study finds a front that carries holds."""

FAMILIES_WANTED, CARRIED_WANTED = 6, 3
"""So many families have a front of FEWEST_OF_FRONT, and so many of them carry."""

OF_LAYERS = "layers", "calm-layers", "calm-layers-40", "calm-layers-3"
"""GPTs that are decided layer by layer."""

AMONG = (
    ("GPT", ("gpt", "masters", "stack", "calm-gpt", "calm-gpt-masters", *OF_LAYERS)),
    ("tanh MLP", ("tanh", "deep", "calm-tanh", "calm-deep")),
)
"""What is among those that carry, and the families of that kind."""

REFUSED = ("adamw", "noisy")
"""What is never said to carry."""

DRAWS = 200
"""So many draws of as many policies stand beside what is carried."""

BASE = """
[study]
name = "carried"
trials = 20
workers = 2
seeds = [0, 1, 2]
confirm_share = 0
least_gain = 0

[task]
model = "mlp"
activation = "tanh"
widths = [128, 128, 128]
data = "digits"
optimizer = "momentum"
learning_rate = 0.02
momentum = 0.9
batch_size = 64
steps = 150
tail_steps = 50

[cost]
device = "B200-SXM"
stack = "torch.compile"
batch_size = 65536
batch_size_reason = "at 64 the kernels are too small for any format to pay on this device"

# What is priced is as wide as what such formats are for; the trained nets are stand-ins.
[cost.net]
widths = [4096, 4096, 4096]

[objectives]
matters = 1e-4

[space]
formats = ["float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fn"]
base = "torch.autocast.bfloat16"
master_weights = [true, false]
scalings = ["current"]
ladder = ["uniform", "torch.autocast.bfloat16", "te.nvfp4"]
"""


Changes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """Changes of BASE that give the large net, and `fewer` those that make the small net of it.

    Without the latter it is narrower.
    """

    changes: Changes
    fewer: Changes = ()

    def large(self) -> StudySpec:
        """Return the study of the large net."""
        return spec_from_text(_changed(BASE, self.changes), "benchmarks.carry")

    def small(self) -> StudySpec:
        """Return the study of the small net."""
        if self.fewer:
            text = _changed(_changed(BASE, self.changes), self.fewer)
            return spec_from_text(text, "benchmarks.carry")
        large = self.large()
        return replace(large, task=large.task.narrower(SHARE))


def _changed(text: str, changes: Changes) -> str:
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    return text


NET = "widths = [4096, 4096, 4096]"
MLP, MLP_WIDTHS = 'model = "mlp"\nactivation = "tanh"', "widths = [128, 128, 128]"
MOMENTUM = 'optimizer = "momentum"\nlearning_rate = 0.02\nmomentum = 0.9'

ADAMW = (
    (MOMENTUM, 'optimizer = "adamw"\nlearning_rate = 0.003\nweight_decay = 0.1'),
    (MLP_WIDTHS, "widths = [256, 256, 256]"),
    ("steps = 150", "steps = 400"),
)
"""Storage in bfloat16 without masters costs the small net something, the large one nothing."""

BLOCKS = ('base = "torch', 'granularity = "block"\nbase = "torch')

GPT = (
    (MLP, 'model = "gpt"\nactivation = "gelu"'),
    ('data = "digits"', 'data = "sums"\nloss = "token_cross_entropy"'),
    (MOMENTUM, 'optimizer = "adamw"\nlearning_rate = 0.004\nweight_decay = 0.01'),
    ("batch_size = 64\n", "batch_size = 8\n"),
    ("batch_size = 65536", "batch_size = 512"),
    (NET, "widths = [1024, 4096, 4096]"),
    BLOCKS,
)
"""The recipe of studies/gpt-sums.toml, for fewer and smaller batches."""

TRANSFORMER = (
    (MLP, 'model = "transformer"\nactivation = "gelu"'),
    (MOMENTUM, 'optimizer = "adamw"\nlearning_rate = 0.002\nweight_decay = 0.01'),
    ("batch_size = 65536", "batch_size = 512"),
    (NET, "widths = [1024, 4096, 4096]"),
    BLOCKS,
)


def _calm(tail: int, warmup: int) -> tuple[str, str]:
    """Return the change to the schedule of the shipped studies: a tenth up, half a cosine down."""
    return f"tail_steps = {tail}", "\n".join(
        (
            f"tail_steps = {tail}\n",
            "[task.schedule]",
            'kind = "cosine"',
            f"warmup_steps = {warmup}",
            "final_factor = 0.01",
        )
    )


CALM = _calm(50, 15)

CALM_GPT = (
    *GPT[:3],
    ("weight_decay = 0.01", 'weight_decay = 0.01\nweight_decay_for = "matrices"'),
    ("batch_size = 64\n", "batch_size = 16\n"),
    ("steps = 150", "steps = 240"),
    ("tail_steps = 50", "tail_steps = 60"),
    _calm(60, 24),
    ("batch_size = 65536", "batch_size = 2048"),
    (NET, "widths = [4096, 16384, 16384]"),
    BLOCKS,
    (MLP_WIDTHS, "widths = [64, 128, 128]"),
)
"""The whole recipe of studies/gpt-sums.toml, priced where eight and four bits pay."""

CALM_LAYERS = tuple(change for change in CALM_GPT if change != BLOCKS)

MASTERS = "master_weights = [true, false]", "master_weights = [true]"

PRICED_TWO, PRICED_TWELVE = "widths = [1024, 4096, 4096]", f"widths = [1024{', 4096' * 12}]"
TWO, TWELVE = "widths = [32, 64, 64]", f"widths = [32{', 64' * 12}]"

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "tanh": Family(()),
        "adamw": Family(ADAMW),
        "noisy": Family(
            (
                (MLP, 'model = "resnet"\nactivation = "relu"'),
                (MLP_WIDTHS, "widths = [16, 32]"),
                (NET, "widths = [256, 512]"),
                ("learning_rate = 0.02", "learning_rate = 0.2"),
                ("steps = 150", "steps = 60"),
                ("tail_steps = 50", "tail_steps = 20"),
                ("batch_size = 65536", "batch_size = 1024"),
            )
        ),
        "gelu": Family((('"tanh"', '"gelu"'),)),
        "deep": Family(
            (
                (MLP_WIDTHS, f"widths = {[96] * 6}"),
                (NET, f"widths = {[4096] * 6}"),
            )
        ),
        "gpt": Family((*GPT, (MLP_WIDTHS, "widths = [64, 128, 128]"))),
        # Decided layer by layer, for a front of four members.
        "layers": Family(
            (*GPT[:-1], (MLP_WIDTHS, "widths = [48, 96, 96]"), ("steps = 150", "steps = 100"))
        ),
        # The GPT with masters alone, tried after the others.
        "masters": Family(
            (
                *GPT,
                (MLP_WIDTHS, "widths = [48, 96, 96]"),
                ("steps = 150", "steps = 100"),
                ("trials = 20", "trials = 14"),
                MASTERS,
            )
        ),
        "transformer": Family((*TRANSFORMER, (MLP_WIDTHS, "widths = [64, 128, 128]"))),
        "stack": Family(
            (
                *GPT,
                (MLP_WIDTHS, TWELVE),
                (PRICED_TWO, PRICED_TWELVE),
                ("steps = 150", "steps = 80"),
                ("tail_steps = 50", "tail_steps = 25"),
            ),
            fewer=((TWELVE, TWO), (PRICED_TWELVE, PRICED_TWO)),
        ),
        # No rule was chosen by these two: they are run after the others.
        "rms": Family(
            (
                *TRANSFORMER,
                ('"transformer"', '"rms_transformer"'),
                (MLP_WIDTHS, "widths = [48, 96, 96]"),
            )
        ),
        "taper": Family(
            (
                ('"tanh"', '"gelu_tanh"'),
                (MLP_WIDTHS, "widths = [160, 64]"),
                (NET, "widths = [5120, 2048]"),
            )
        ),
        # Written down before any of them was run: nets of above with the shipped schedule.
        "calm-tanh": Family((CALM, (MLP_WIDTHS, "widths = [256, 256, 256]"))),
        "calm-gelu": Family((CALM, ('"tanh"', '"gelu"'))),
        "calm-deep": Family(
            (CALM, (MLP_WIDTHS, f"widths = {[96] * 6}"), (NET, f"widths = {[4096] * 6}"))
        ),
        "calm-taper": Family(
            (
                CALM,
                ('"tanh"', '"gelu_tanh"'),
                (MLP_WIDTHS, "widths = [160, 64]"),
                (NET, "widths = [5120, 2048]"),
            )
        ),
        "calm-transformer": Family(
            (
                *TRANSFORMER[:2],
                CALM,
                ("batch_size = 65536", "batch_size = 2048"),
                (NET, "widths = [4096, 16384, 16384]"),
                BLOCKS,
                (MLP_WIDTHS, "widths = [64, 128, 128]"),
            )
        ),
        "calm-resnet": Family(
            (
                (MLP, 'model = "resnet"\nactivation = "gelu"'),
                (MLP_WIDTHS, "widths = [16, 32]"),
                (NET, "widths = [512, 1024]"),
                ("learning_rate = 0.02", "learning_rate = 0.01"),
                ("batch_size = 64\n", "batch_size = 32\n"),
                ("batch_size = 65536", "batch_size = 1024"),
                CALM,
            )
        ),
        "calm-gpt": Family(CALM_GPT),
        "calm-gpt-masters": Family((*CALM_GPT, MASTERS)),
        # Written down after the GPTs above had fronts of three, before it was run.
        "calm-layers": Family(CALM_LAYERS),
        # Written down after that one had a front of three, before either of them was run.
        "calm-layers-40": Family((*CALM_LAYERS, ("trials = 20", "trials = 40"))),
        "calm-layers-3": Family(
            (
                *CALM_GPT[:-3],
                ("trials = 20", "trials = 30"),
                (NET, "widths = [4096, 16384, 16384, 16384]"),
                (MLP_WIDTHS, "widths = [48, 96, 96, 96]"),
            )
        ),
        # Written down after calm-layers had a front of five, before either of them was run.
        **{
            f"{model}-layers": Family(
                (
                    (MLP, f'model = "{model}"\nactivation = "gelu"'),
                    TRANSFORMER[1],
                    CALM,
                    ("batch_size = 65536", "batch_size = 2048"),
                    (NET, "widths = [4096, 16384, 16384]"),
                    (MLP_WIDTHS, "widths = [64, 128, 128]"),
                )
            )
            for model in ("transformer", "rms_transformer")
        },
    }
)


def carried(family: Family, policies: int, folder: Path) -> Carried:
    """Return what came of the family, its journals in `folder`."""
    small, large = family.small(), family.large()
    journals = folder / "small.journal", folder / "large.journal"
    api.run_study(small, journals[0], processes=0, progress=False)
    return api.carry_study(small, large, *journals, policies=policies, processes=0)


@dataclass(frozen=True)
class Held:
    """Which share of the volume that all dominate in the large net the carried policies hold.

    `count` of the small study's `of` are carried; `drawn`: the mean share of as many drawn from
    these. `trained` is held by those that `carry` itself trained, `shown` by the front on the page
    of the small study, `own` by that of the large net's own study. NaN where `front` is too small
    for that to say something, or nothing was carried.
    """

    front: int
    count: int = 0
    of: int = 0
    share: float = float("nan")
    drawn: float = float("nan")
    trained: float = float("nan")
    shown: float = float("nan")
    own: float = float("nan")

    @property
    def over_own(self) -> float:
        """What is carried over what the large net's own study found."""
        return self.share / self.own

    @property
    def counts(self) -> bool:
        """Whether the small study's front is large enough for the share to say something."""
        return self.front >= FEWEST_OF_FRONT

    def __str__(self) -> str:
        if not self.counts:
            return f"own: the small front has {self.front} members; does not count"
        return (
            f"own: the {self.count} of {self.of} that are carried hold {self.over_own:.2f} times "
            f"the volume of the large net's own study; of all that was trained {self.share:.3f}, "
            f"as many drawn {self.drawn:.3f}, those trained by carry {self.trained:.3f}, the "
            f"{self.front} that the small study shows {self.shown:.3f}, own {self.own:.3f}"
        )


def held(found: Carried, large: StudySpec, folder: Path) -> Held:
    """Return what the carried policies hold of the volume of all that is trained in the large net.

    That is its own study and every policy of the small one, in a copy of the large journal of
    `carried` in `folder`.
    """
    front = {trial.digest for trial in found.small.front}
    if found.large is None or len(front) < FEWEST_OF_FRONT:
        return Held(len(front))
    journal = folder / "own.journal"
    if not journal.exists():
        shutil.copy(folder / "large.journal", journal)
    own, numbers = api.run_study(large, journal, processes=0, progress=False), dict[str, int]()
    models = objective_of(found.small.spec).model, objective_of(large).model
    for trial in comparable(found.small):
        policy = rules_file_of(trial.policy, models[0]).policy(models[1])
        own, numbers[trial.digest], _ = api.try_policy(policy, large, journal, processes=0)
    carried = {numbers[each.trial.digest] for each in found.moved}
    rng, every = np.random.default_rng(0), sorted(numbers.values())
    draws = [rng.choice(every, len(carried), replace=False) for _ in range(DRAWS)]
    return Held(
        len(front),
        len(carried),
        len(every),
        _share(own, carried),
        float(np.mean([_share(own, set(map(int, draw))) for draw in draws])),
        _share(own, {numbers[each.trial.digest] for each in found.trained}),
        _share(own, {numbers[digest] for digest in front if digest in numbers}),
        _share(own, {trial.number for trial in own.front}),
    )


def _share(own: Results, numbers: set[int]) -> float:
    """Return which share of the volume of all trials those with these numbers have."""
    sound = [trial for trial in own.trials if not trial.diverged]
    costs = np.array([(1.0 / trial.cost.speedup, trial.cost.memory_ratio) for trial in sound])
    gaps = np.array([trial.loss_gap for trial in sound])
    measure = yardstick(ladder_costs(own))
    chosen = [trial.number in numbers for trial in sound]
    return measure.volume(gaps[chosen], costs[chosen]) / measure.volume(gaps, costs)


def fault(kinds: Mapping[str, str], shares: Mapping[str, Held]) -> str:
    """Return what of WANTED is not reached by the verdict of each family and what it holds."""
    counted = [name for name, share in shares.items() if share.counts]
    carry = [name for name in counted if kinds[name] == "carries"]
    told = [name for name in REFUSED if kinds.get(name) == "carries"]
    lost = [name for name in carry if not shares[name].over_own >= HELD]
    reached = (
        (len(counted) >= FAMILIES_WANTED, f"{len(counted)} families with a front of four"),
        (len(carry) >= CARRIED_WANTED, f"{len(carry)} of them carry"),
        *((any(n in names for n in carry), f"no {kind} carries") for kind, names in AMONG),
        (not told, f"told to carry: {', '.join(told)}"),
        (not lost, f"told to carry and below {HELD}: {', '.join(lost)}"),
    )
    return "; ".join(said for fine, said in reached if not fine)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--own", action="store_true", help="train the large net's own study too")
    parser.add_argument("--journals", type=Path, help="folder to keep them in and go on from")
    options = parser.parse_args()
    pin_one_thread()
    kinds, shares = dict[str, str](), dict[str, Held]()
    for name in options.families:
        family, began = FAMILIES[name], time.process_time()
        with tempfile.TemporaryDirectory() as passing:
            folder = Path(options.journals or passing) / name
            folder.mkdir(parents=True, exist_ok=True)
            found = carried(family, options.policies, folder)
            kinds[name], page = found.kind, carried_page(found)
            if options.own:
                shares[name] = held(found, family.large(), folder)
                page += f"\n\n{shares[name]}"
        print(f"\n{name}: {time.process_time() - began:.0f} s of CPU\n{page}", flush=True)
    missed = fault(kinds, shares)
    print(f"\nmissed: {missed or 'nothing'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
