"""What a step on torch takes to the host: arrays that are read, functions that torch lacks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def host_calls() -> Iterator[Counter[str]]:
    """Count the calls by name, reads of arrays as "read", while the context lasts."""
    from policysearch.emulator.torch_array import TorchArray

    calls: Counter[str] = Counter()
    read, run = TorchArray.__array__, TorchArray._on_host

    def counted_read(self: TorchArray, *args: Any, **kwargs: Any) -> Any:
        if self.ndim:
            calls["read"] += 1
        return read(self, *args, **kwargs)

    def counted_run(self: TorchArray, name: str, *args: Any) -> Any:
        calls[name] += 1
        return run(self, name, *args)

    with (
        mock.patch.object(TorchArray, "__array__", counted_read),
        mock.patch.object(TorchArray, "_on_host", counted_run),
    ):
        yield calls
