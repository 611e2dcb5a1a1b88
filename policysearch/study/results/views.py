"""Results at home in Python: what commands show of a study, as methods of its results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from policysearch.values import InputError, Shown

VIEWS: dict[str, Callable[..., Any]] = {}
"""What rooms above make of results, by the name of the method; `policysearch.api` fills it in."""


class Views(Shown):
    """Methods of `Results` that need what is drawn and asked above them."""

    def plot(self, out: str | Path | None = None, *, axis: str = "speedup") -> Any:
        """Return loss gap against `axis` ("speedup" or "memory") as a figure of matplotlib.

        With `out`, a file that ends in .png, .svg or .pdf, it is written there too. InputError for
        another ending or axis.
        """
        return self._view("plot", out, axis)

    def report(self, out: str | Path | None = None, *, study: str = "") -> Path:
        """Write the study as one HTML page and return where: `out`, or results/<name>.html.

        `study` is the study file as commands on the page name it.
        """
        path: Path = self._view("report", out, study)
        return path

    def why(self, trial: int, layer: str = "", *, processes: int | None = None) -> str:
        """Return why a layer of a trial is as it is: it is trained one format wider and narrower.

        Without a layer, what one more decision would buy. `processes` as of `run_study`. The runs
        are recorded in the journal of the results. InputError for a trial or layer there is not.
        """
        said: str = self._view("why", trial, layer, processes)
        return said

    def profile(self, trial: int) -> str:
        """Return where the modeled time and memory of a trial's step go, kernel by kernel.

        The step is priced anew, so the task's data and net are made. InputError for a trial there
        is not.
        """
        said: str = self._view("profile", trial)
        return said

    def diagnose(self, trial: int, *, budget: int = 6) -> str:
        """Return why a trial fails, where, and the smallest change that repairs it.

        It is trained in this process, and so are at most `budget` changes of it; nothing is
        recorded. InputError for a trial there is not.
        """
        said: str = self._view("diagnose", trial, budget)
        return said

    def propose(self) -> str:
        """Return the loss-scale schedule and phase points that the float32 run suggests, as TOML.

        That run is trained in this process.
        """
        said: str = self._view("propose")
        return said

    def _view(self, name: str, *given: Any) -> Any:
        if name not in VIEWS:
            raise InputError(f"{name}: nothing to show it with; expected policysearch.load_results")
        return VIEWS[name](self, *given)
