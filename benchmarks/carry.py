"""What `carry` says of families of nets, each from a quarter of the width, or fewer blocks.

    python -m benchmarks.carry --families tanh adamw noisy --policies 8 --own

A study of the small net is run, then its front and neighbours are carried to the large one, of
which nothing but these is trained. Prints the verdict, the numbers behind it and the seconds of
each family. With `--own` the large net has a study of its own budget as well, and the rest of the
small front is trained there: printed is the share that the carried front holds of the volume that
all dominate. Exits with 1 where a verdict is not the one that the family is there for, or where
less than .95 of the volume is held though it says *carries*.
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
from policysearch.search.hypervolume import Array, places_of_front
from policysearch.space.rules_file import rules_file_of
from policysearch.study.journal.trials import Trial
from policysearch.study.questions.carry import Carried
from policysearch.study.results.gain import ladder_costs
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, objective_of, spec_from_text

SHARE = 0.25

FEWEST_OF_FRONT = 4
"""A smaller front says nothing of how well fronts carry."""

HELD = 0.95
"""So much of the large net's volume a front that is said to carry holds."""

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
    """Changes of BASE, and what `carry` is expected to say: "" where nothing is.

    `fewer` are the changes that make the small net of the large one; without them it is narrower.
    """

    changes: Changes
    expected: str = ""
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

MASTERS = "master_weights = [true, false]", "master_weights = [true]"

PRICED_TWO, PRICED_TWELVE = "widths = [1024, 4096, 4096]", f"widths = [1024{', 4096' * 12}]"
TWO, TWELVE = "widths = [32, 64, 64]", f"widths = [32{', 64' * 12}]"

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "tanh": Family((), "carries"),
        "adamw": Family(ADAMW, "cannot tell"),
        "noisy": Family(
            (
                (MLP, 'model = "resnet"\nactivation = "relu"'),
                (MLP_WIDTHS, "widths = [16, 32]"),
                (NET, "widths = [256, 512]"),
                ("learning_rate = 0.02", "learning_rate = 0.2"),
                ("steps = 150", "steps = 60"),
                ("tail_steps = 50", "tail_steps = 20"),
                ("batch_size = 65536", "batch_size = 1024"),
            ),
            "cannot tell",
        ),
        "gelu": Family((('"tanh"', '"gelu"'),)),
        "deep": Family(
            (
                (MLP_WIDTHS, f"widths = {[96] * 6}"),
                (NET, f"widths = {[4096] * 6}"),
            )
        ),
        "gpt": Family((*GPT, (MLP_WIDTHS, "widths = [64, 128, 128]")), "carries"),
        # Decided layer by layer, for a front of four members.
        "layers": Family(
            (*GPT[:-1], (MLP_WIDTHS, "widths = [48, 96, 96]"), ("steps = 150", "steps = 100")),
            "carries",
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
        "calm-tanh": Family((CALM, (MLP_WIDTHS, "widths = [256, 256, 256]")), "carries"),
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
        "calm-gpt": Family(CALM_GPT, "carries"),
        "calm-gpt-masters": Family((*CALM_GPT, MASTERS), "carries"),
    }
)


def carried(family: Family, policies: int, folder: Path) -> Carried:
    """Return what came of the family, its journals in `folder`."""
    small, large = family.small(), family.large()
    journals = folder / "small.journal", folder / "large.journal"
    api.run_study(small, journals[0], processes=0, progress=False)
    return api.carry_study(small, large, *journals, policies=policies, processes=0)


def held(found: Carried, large: StudySpec, folder: Path) -> tuple[float, str]:
    """Return which share of the large net's volume the small net's front holds, and in words.

    NaN where the front that is shown is too small. The volume is of all that is trained there, its
    own study and what was carried; a front that is shown leaves out what is too near to be told,
    so what it has of it is compared with what the large net's own has. What is trained goes to a
    copy of the large journal of `carried` in `folder`.
    """
    shown = {trial.digest for trial in found.small.front}
    if len(shown) < FEWEST_OF_FRONT or found.large is None:
        return float("nan"), f"own: the small front has {len(shown)} members; does not count"
    journal, front = folder / "own.journal", shown | _front(found.small)
    if not journal.exists():
        shutil.copy(folder / "large.journal", journal)
    own, numbers = api.run_study(large, journal, processes=0, progress=False), dict[str, int]()
    model = objective_of(found.small.spec).model
    for trial in found.small.trials:
        if trial.digest in front:
            policy = rules_file_of(trial.policy, model).policy(objective_of(large).model)
            own, numbers[trial.digest], _ = api.try_policy(policy, large, journal, processes=0)
    all_share, shown_share = (_share(own, {numbers[d] for d in of}) for of in (front, shown))
    own_share = _share(own, {trial.number for trial in own.front})
    return all_share, (
        f"own: the {len(front)} of the carried front hold {all_share:.3f} of the volume of "
        f"{len(own.trials)} policies there; the {len(shown)} that are shown {shown_share:.3f}, the "
        f"{len(own.front)} of its own front {own_share:.3f}"
    )


def _front(results: Results) -> set[str]:
    """Return the digests of the front by the gaps that it counts, what is too near to tell too."""
    sound, costs = _sound(results)
    gaps = [results.counted_gap(trial) for trial in sound]
    places = places_of_front(np.column_stack([gaps, costs]))
    return {sound[place].digest for place in places}


def _sound(results: Results) -> tuple[list[Trial], Array]:
    """Return the n that did not diverge, and their (time, memory) over float32's: [n, 2]."""
    sound = [trial for trial in results.trials if not trial.diverged]
    costs = [(1.0 / trial.cost.speedup, trial.cost.memory_ratio) for trial in sound]
    return sound, np.array(costs)


def _share(own: Results, numbers: set[int]) -> float:
    """Return which share of the volume of all trials those with these numbers have."""
    sound, costs = _sound(own)
    gaps = np.array([trial.loss_gap for trial in sound])
    measure = yardstick(ladder_costs(own))
    chosen = [trial.number in numbers for trial in sound]
    return measure.volume(gaps[chosen], costs[chosen]) / measure.volume(gaps, costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--policies", type=int, default=8)
    parser.add_argument("--own", action="store_true", help="train the large net's own study too")
    parser.add_argument("--journals", type=Path, help="folder to keep them in and go on from")
    options = parser.parse_args()
    pin_one_thread()
    wrong = 0
    for name in options.families:
        family, began, share = FAMILIES[name], time.process_time(), float("nan")
        with tempfile.TemporaryDirectory() as passing:
            folder = Path(options.journals or passing) / name
            folder.mkdir(parents=True, exist_ok=True)
            found = carried(family, options.policies, folder)
            page = carried_page(found)
            if options.own:
                share, said = held(found, family.large(), folder)
                page += f"\n\n{said}"
        print(f"\n{name}: {time.process_time() - began:.0f} s of CPU\n{page}", flush=True)
        wrong += bool(family.expected) and found.kind != family.expected
        wrong += found.kind == "carries" and share < HELD
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
