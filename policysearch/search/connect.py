"""Connects to a Dask scheduler, or starts one with workers on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from policysearch.search.cluster import Cluster
from policysearch.values import InputError

if TYPE_CHECKING:
    from distributed import LocalCluster

CONNECT_SECONDS = 10.0

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def cluster_at(address: str) -> Iterator[Cluster]:
    """Yield the cluster whose scheduler has `address`; "local:N" starts one of N workers here.

    All addresses of the latter are of the loopback interface. Raises InputError where dask is not
    installed, where nobody answers, and for an N that is no number from 1 on.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InputError(
            "--cluster: needs dask, which is not installed; expected pip install "
            "'policysearch[dask]'"
        ) from None
    kind, _, count = address.partition(":")
    if kind == "local" and not (count.isdecimal() and 1 <= int(count) <= 1024):
        raise InputError(f"--cluster: {address}; expected local:N with N from 1 to 1024")
    with contextlib.ExitStack() as stack:
        try:
            target: Any = address
            if kind == "local":
                target = stack.enter_context(_local(int(count)))
            client = stack.enter_context(Client(target, timeout=CONNECT_SECONDS))
        except (OSError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise InputError(
                f"--cluster: {address}: {said}; expected the address of a dask scheduler, as "
                "tcp://HOST:8786, or local:N"
            ) from None
        yield Cluster(client)


def _local(workers: int) -> LocalCluster:
    """Return a scheduler with so many workers on the loopback interface."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host=LOOPBACK,
        dashboard_address=f"{LOOPBACK}:0",
        silence_logs=logging.ERROR,
    )
