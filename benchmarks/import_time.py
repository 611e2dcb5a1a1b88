"""Times the way of large nets from a module to a step that is ready to run, beside torch's export.

    python -m benchmarks.import_time

CPU seconds of this process: one `torch.export.export`; `from_torch`, of that inside the exports,
which are three, of three batch sizes; the step as a graph and ready to run; and the step itself.
The nets are those of timm and transformers (`.[zoo]`) at full size.
"""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import torch

import policysearch
from benchmarks.timing import machine, pin_one_thread, show
from policysearch.emulator.compile import compile_graph
from policysearch.nn.model import Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.feeding import feed_constants, feed_inputs, feed_scalars
from policysearch.train.step import trace_step
from tests.census import FirstOf, timm_models

ALLOWED = 3.0
TIME, SIDE, BATCH = 16, 64, 2


def _of_transformers(name: str, head: str) -> Any:
    timm_models()  # transformers imports torchvision too
    library = importlib.import_module("transformers")
    config = getattr(library, f"{name}Config")(use_cache=False)
    return FirstOf(getattr(library, f"{name}{head}")(config))


def _tokens() -> Any:
    return torch.zeros(BATCH, TIME, dtype=torch.long)


def _images() -> Any:
    return torch.randn(BATCH, 3, SIDE, SIDE)


NETS: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = MappingProxyType(
    {
        "ResNet-50": (lambda: timm_models()[0].create_model("resnet50"), _images),
        "BERT-base": (lambda: _of_transformers("Bert", "ForMaskedLM"), _tokens),
        "GPT-2 small": (lambda: _of_transformers("GPT2", "LMHeadModel"), _tokens),
    }
)
"""Makers of the modules and of their inputs."""


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


def seconds_of(make: Callable[[], Any], example: Any) -> tuple[float, ...]:
    """Return CPU seconds: of one export, of the import, of its exports, ready to run, and run."""
    module, spent = make(), list[float]()
    gc.collect()  # what the imports of libraries left is nobody's time
    with timed_export(spent):
        torch.export.export(module.train(), (example,), strict=False)
        start = time.process_time()
        model = policysearch.from_torch(module, example)
        imported = time.process_time()
        step = compile_graph(trace_step(model, "", Optimizer("sgd"), BATCH))
        ready = time.process_time()
    _feed(step, model, example)
    fed = time.process_time()
    step.forward_backward()
    once, *inside = spent
    ran = time.process_time() - fed
    return once, imported - start, sum(inside), ready - imported, ran, (ready - start) / once


def _feed(step: Any, model: Model, example: Any) -> None:
    for name, value in model.init(np.random.default_rng(0)).items():
        if name in step.arrays:
            step.arrays[name][...] = value
    feed_constants(step, model)
    labels = np.zeros((BATCH, *((TIME,) if example.dim() == 2 else ())), np.int64)
    feed_inputs(step, model, (example.numpy(),), labels)
    feed_scalars(step, 1.0)


def main() -> None:
    """Print the table; a net has at most ALLOWED times one export until its step can run."""
    pin_one_thread()
    torch.set_num_threads(1)
    policysearch.from_torch(torch.nn.Linear(2, 2), torch.zeros(2, 2))  # imports, once per process
    print(machine())
    rows = [(name, *seconds_of(make, inputs())) for name, (make, inputs) in NETS.items()]
    columns = ("net", "one export", "import", "of that exports", "ready", "the step", "times")
    show(f"CPU seconds until a step can run; at most {ALLOWED:g} times one export", columns, rows)


if __name__ == "__main__":
    main()
