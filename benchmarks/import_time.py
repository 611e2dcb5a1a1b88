"""Times the import of a ResNet-18 of full size, torch's own export apart.

    python -m benchmarks.import_time

CPU seconds of this process: all of `from_torch`, of that inside `torch.export.export`, which is
called for three batch sizes, and the rest, which is ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

import policysearch
from benchmarks.timing import machine, pin_one_thread, show
from tests.image_nets_of_torch import ResNet18

ALLOWED_SECONDS = 1.0
WIDTH = 64


@contextmanager
def timed_export(spent: list[float]) -> Iterator[None]:
    """Add the CPU seconds of every call of torch.export.export to `spent`."""
    export = torch.export.export

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return export(*arguments, **options)
        finally:
            spent.append(time.process_time() - start)

    with mock.patch.object(torch.export, "export", timed):
        yield


def import_seconds() -> tuple[float, float]:
    """Return the CPU seconds of importing a ResNet-18: inside torch's export, and besides."""
    module, example = ResNet18(WIDTH), torch.zeros(2, 3, 64, 64)
    spent: list[float] = []
    with timed_export(spent):
        start = time.process_time()
        policysearch.from_torch(module, example)
        whole = time.process_time() - start
    return sum(spent), whole - sum(spent)


def main() -> None:
    pin_one_thread()
    print(machine())
    policysearch.from_torch(torch.nn.Linear(2, 2), torch.zeros(2, 2))  # imports, once per process
    exports, besides = import_seconds()
    rows = [("torch.export, three times", exports), ("besides", besides)]
    show("Importing a ResNet-18 of width 64", ("part", "CPU seconds"), rows)
    verdict = "within" if besides <= ALLOWED_SECONDS else "above"
    print(f"besides torch's own export: {verdict} {ALLOWED_SECONDS:g} s of CPU")


if __name__ == "__main__":
    main()
