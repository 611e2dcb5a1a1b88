"""Connects to a Dask scheduler, or starts one with workers on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from policysearch.search.cluster import Cluster
from policysearch.values import InputError

CONNECT_SECONDS = 10.0

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def cluster_at(address: str) -> Iterator[Cluster]:
    """Yield the cluster whose scheduler has `address`; "local:N" starts one of N workers here.

    All addresses of the latter are of the loopback interface. Raises InputError where dask is not
    installed, where nobody answers, and for an N that is no number from 1 on.
    """
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        raise InputError(
            "--cluster: needs dask, which is not installed; expected pip install "
            "'policysearch[dask]'"
        ) from None
    kind, _, count = address.partition(":")
    with contextlib.ExitStack() as stack:
        target: Any = address
        if kind == "local":
            if not (count.isdecimal() and 1 <= int(count) <= 1024):
                raise InputError(f"--cluster: {address}; expected local:N with N from 1 to 1024")
            target = stack.enter_context(
                LocalCluster(
                    n_workers=int(count),
                    threads_per_worker=1,
                    processes=True,
                    host=LOOPBACK,
                    dashboard_address=f"{LOOPBACK}:0",
                    silence_logs=logging.ERROR,
                )
            )
        try:
            client = stack.enter_context(Client(target, timeout=CONNECT_SECONDS))
        except (OSError, ValueError) as error:
            said = " ".join(str(error).split())
            raise InputError(
                f"--cluster: {address}: {said}; expected the address of a dask scheduler, as "
                "tcp://HOST:8786, or local:N"
            ) from None
        yield Cluster(client)
