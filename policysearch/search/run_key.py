"""Which training run: what its record is called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunKey:
    """Which training run: the policy's digest, the training seed, how far the start is jittered.

    `steps` None means those of the task; a look is stopped after `until` of them, or is of a net of
    `width` of the widths.
    """

    digest: str
    seed: int
    jitter: float = 0.0
    steps: int | None = None
    until: int | None = None
    width: float = 1.0

    def __str__(self) -> str:
        width = f":{self.width!r}" if self.width != 1.0 else ""
        until = f":{self.until or ''}" if self.until or width else ""
        return f"{self.digest}:{self.seed}:{self.jitter!r}:{self.steps or ''}{until}{width}"

    @staticmethod
    def read(text: str) -> RunKey:
        """Return the key that `str` gave as `text`."""
        digest, seed, jitter, steps, until, width, *_ = [*text.split(":"), "", ""]
        counts = (int(steps) if steps else None, int(until) if until else None)
        return RunKey(digest, int(seed), float(jitter), *counts, float(width or 1.0))
