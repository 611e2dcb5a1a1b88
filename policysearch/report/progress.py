"""A progress bar on standard error: trials, the front so far, time left."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from tqdm import tqdm

from policysearch.study.results.results import Results
from policysearch.study.session import Progress

FRONT_SECONDS = 1.0
"""The front is worked out at most so often."""


class _Tolerant:
    """Standard error, or nothing once it can no longer be written to: no study ends for that."""

    def write(self, text: str) -> int:
        try:
            return sys.stderr.write(text) if sys.stderr else len(text)
        except (OSError, ValueError):
            return len(text)

    def flush(self) -> None:
        try:
            if sys.stderr:
                sys.stderr.flush()
        except (OSError, ValueError):
            pass

    def isatty(self) -> bool:
        try:
            return bool(sys.stderr) and sys.stderr.isatty()
        except ValueError:
            return False


class Bar:
    """Shows how far a study is; a context manager, called after every training run."""

    def __init__(
        self,
        total: int | None = None,
        what: str = "trials",
        beside: Callable[[], str] | None = None,
        kind: Callable[..., Any] = tqdm,
    ) -> None:
        """`beside` says how much is under way, shown with the rate; `kind` is the bar of tqdm."""
        self._kind = kind
        self._total, self._what, self._beside = total, what, beside
        self._bar: tqdm[NoReturn] | None = None
        self._front_at, self._told = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._bar is not None:
            if self._told and kind is None:  # fewer than there might have been
                self._bar.total = self._told
                self._bar.update(self._told - self._bar.n)
            self._bar.close()

    def __call__(self, trained: float, results: Callable[[], Results]) -> None:
        """Show `trained` trials, and now and then what `results` have come to."""
        bar = self._begun(trained)
        now = time.monotonic()
        if now - self._front_at >= FRONT_SECONDS or trained == self._total:
            self._front_at = now
            beside = [self._beside()] if self._beside else []
            bar.set_postfix_str(", ".join([*beside, _state_words(results())]), refresh=False)
        self._show(bar, trained)

    def tell(self, what: str) -> None:
        """Show that the next one begins, and in words which it is."""
        bar = self._begun(0)
        bar.set_postfix_str(what, refresh=False)
        self._show(bar, self._told)
        bar.refresh()  # it may take long, and nothing has been counted yet
        self._told += 1

    def _begun(self, trained: float) -> tqdm[NoReturn]:
        if self._bar is None:
            # Not before there is something to tell: a mistake in the study is one line alone.
            # Trials of an earlier run took none of this one's time.
            stream: Any = _Tolerant()
            self._bar = self._kind(
                total=self._total and max(self._total, math.ceil(trained)),
                initial=trained,
                file=stream,
                mininterval=0.1 if stream.isatty() else 10.0,
                bar_format=self._format(),
                unit=f" {self._what}",
            )
        return self._bar

    def _show(self, bar: tqdm[NoReturn], trained: float) -> None:
        if self._total is not None:  # Presets that were added to the study come on top of it.
            bar.total = max(self._total, math.ceil(trained))
        bar.update(trained - bar.n)

    def _format(self) -> str:
        rate = ", {rate_noinv_fmt}" if self._beside else ""
        if self._total is None:
            return f"{{n:.0f}} {self._what}, {{elapsed}}{rate}{{postfix}}"
        head = f"{{n:.0f}}/{{total}} {self._what}"
        return f"{head} |{{bar}}| {{elapsed}}{rate}, {{remaining}} left{{postfix}}"


@contextlib.contextmanager
def told(
    progress: Progress | bool, total: int | None, what: str = "trials"
) -> Iterator[Progress | None]:
    """Yield what is told of runs: `progress` itself, a bar where that is True, None for False.

    The bar is tqdm's for a notebook in one, and that for a terminal elsewhere.
    """
    if progress is False:
        yield None
    elif progress is not True:
        yield progress
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm's, where a notebook lacks ipywidgets
            from tqdm.auto import tqdm as auto
        with Bar(total, what, kind=auto) as bar:
            yield bar


def _state_words(results: Results) -> str:
    diverged = sum(trial.diverged for trial in results.trials)
    words = [f"{diverged} diverged"] * bool(diverged) + [f"{len(results.failed)} failed"] * bool(
        results.failed
    )
    if results.front:
        best = results.knee()
        words.insert(
            0, f"front {len(results.front)}, knee {best.cost.speedup:.2f}x gap {best.loss_gap:+.1e}"
        )
    return ", ".join(words)
