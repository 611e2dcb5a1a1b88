"""What `carry` says of families of nets, each from a quarter of the width to the whole.

    python -m benchmarks.carry --families tanh adamw noisy --policies 8

A study of the small net is run, then its front and neighbours are carried to the large one, of
which nothing but these is trained. Prints the verdict, the numbers behind it and the seconds of
each family. Exits with 1 where a verdict is not the one that the family is there for.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from benchmarks.timing import pin_one_thread
from policysearch import api
from policysearch.report.carried_page import carried_page
from policysearch.study.specification import StudySpec, spec_from_text

SHARE = 0.25

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
device = "H100-SXM5"
stack = "torch.compile"
batch_size = 65536
batch_size_reason = "at 64 the kernels are too small for any format to pay on this device"

[space]
formats = ["float32", "bfloat16", "float16", "float8_e4m3fn"]
base = "torch.autocast.bfloat16"
master_weights = [true, false]
loss_scales = ["none", "fixed"]
scalings = ["current"]
ladder = ["uniform", "mindspore.O2.fixed128", "apex.O3"]
"""


@dataclass(frozen=True)
class Family:
    """Changes of BASE, and what `carry` is expected to say: "" where nothing is."""

    changes: tuple[tuple[str, str], ...]
    expected: str = ""

    def large(self) -> StudySpec:
        """Return the study of the large net."""
        text = BASE
        for before, after in self.changes:
            assert before in text, before
            text = text.replace(before, after)
        return spec_from_text(text, "benchmarks.carry")


ADAMW = (
    (
        'optimizer = "momentum"\nlearning_rate = 0.02\nmomentum = 0.9',
        'optimizer = "adamw"\nlearning_rate = 0.003\nweight_decay = 0.1',
    ),
    ("widths = [128, 128, 128]", "widths = [256, 256, 256]"),
    ("steps = 150", "steps = 400"),
    ('"float16", ', ""),
)
"""Storage in bfloat16 without masters costs the small net something, the large one nothing."""

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "tanh": Family((), "carries"),
        "adamw": Family(ADAMW, "cannot tell"),
        "noisy": Family(
            (
                ('model = "mlp"\nactivation = "tanh"', 'model = "resnet"\nactivation = "relu"'),
                ("widths = [128, 128, 128]", "widths = [16, 32]"),
                ("learning_rate = 0.02", "learning_rate = 0.2"),
                ("steps = 150", "steps = 60"),
                ("tail_steps = 50", "tail_steps = 20"),
                ("batch_size = 65536", "batch_size = 1024"),
            ),
            "cannot tell",
        ),
        "gelu": Family((('"tanh"', '"gelu"'),)),
        "deep": Family((("widths = [128, 128, 128]", "widths = [96, 96, 96, 96, 96, 96]"),)),
    }
)


def carried(family: Family, policies: int, folder: Path) -> tuple[str, str]:
    """Return the kind of the verdict, and its page."""
    large = family.large()
    small = replace(large, task=large.task.narrower(SHARE))
    journals = folder / "small.journal", folder / "large.journal"
    api.run_study(small, journals[0], processes=0, progress=False)
    found = api.carry_study(small, large, *journals, policies=policies, processes=0)
    return found.kind, carried_page(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--policies", type=int, default=8)
    options = parser.parse_args()
    pin_one_thread()
    wrong = 0
    for name in options.families:
        family, began = FAMILIES[name], time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            kind, page = carried(family, options.policies, Path(folder))
        print(f"\n{name}: {time.process_time() - began:.0f} s of CPU\n{page}", flush=True)
        wrong += bool(family.expected) and kind != family.expected
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
