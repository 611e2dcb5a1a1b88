"""Files of the user's own that do not return: they exit, raise, loop, print bytes, take memory."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from policysearch.commands.trust import VARIABLE
from tests.studies import write_study
from tests.test_kept import NET, OWN
from tests.test_kills import ROOT, gone

DOES = {
    "raises": "raise RuntimeError('no')",
    "raises without words": "raise AssertionError",
    "exits": "import sys; sys.exit(0)",
    "exits at once": "import os; os._exit(0)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "loops": "while True: pass",
    "prints bytes": "import os; os.write(1, bytes(range(256)) * 20)",
    "takes memory": "held = [bytearray(1 << 26) for _ in range(10 ** 6)]",
    "nests without end": "return model() if True else None",
}
"""What a function does in the place of what it should."""

PLACES = ("model", "data", "right")
COMMANDS = (
    "run tiny.toml --processes 2 --no-confirm",
    "explain preset:bfloat16 --study tiny.toml",
    "estimate tiny.toml",
)
PATIENCE_SECONDS, MEMORY_BYTES = 40.0, 6 << 30


def own_code(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Run commands on files that do this in each of their functions, at most `count` in all.

    A function that loops, or ends the process by itself, is the user's own: Ctrl-C ends the first,
    and both leave no process and no traceback. All else is refused, or recorded, in one line.
    """
    ends = Counter[str]()
    cases = [(does, place) for does in DOES for place in PLACES]
    for number, (does, place) in enumerate(cases[:count]):
        folder.joinpath("own").mkdir()
        command = COMMANDS[number % len(COMMANDS)]
        end, err = _ended(does, place, command, folder / "own")
        if end not in ("refused", "taken", "stopped", "gone"):
            said(f"{place} {does}: {command}: {end}: {err[-400:]}")
        ends[f"{does}: {end}"] += 1
        shutil.rmtree(folder / "own")
    return ends


def _ended(does: str, place: str, command: str, folder: Path) -> tuple[str, str]:
    head = f"def {place}("
    at = NET.index("\n", NET.index(head)) + 1
    (folder / "net.py").write_text(f"{NET[:at]}    {DOES[does]}\n{NET[at:]}", encoding="utf-8")
    metric = ("tail_steps = 3", 'tail_steps = 3\nmetric = "net.py:right"')
    write_study(folder, *OWN, metric)
    process = subprocess.Popen(
        [sys.executable, "-m", "policysearch", *command.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_limited,
    )
    stopped = False
    try:
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        stopped = True
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=PATIENCE_SECONDS)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            return "not stopped", ""
    text = err.decode(errors="replace")
    if "Traceback" in text:
        return "traceback", text
    if not gone(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
        return "processes left", text
    lines = [line for line in text.splitlines() if line and "trials |" not in line]
    if stopped:
        return ("stopped" if process.returncode == 130 else f"exit {process.returncode}"), text
    if does in ("exits at once", "stops itself") and process.returncode in (0, -signal.SIGKILL):
        return "gone", text
    if process.returncode == 2:
        return ("refused" if "expected" in lines[-1] else "without a hint"), text
    return ("taken" if process.returncode == 0 else f"exit {process.returncode}"), text


def _limited() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
