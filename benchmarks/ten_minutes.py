"""Times docs/start.md as a stranger follows it: own net to applied policy, in a fresh environment.

    python -m benchmarks.ten_minutes                    # builds the wheel first, which is not timed
    python -m benchmarks.ten_minutes --wheel dist/policysearch-*.whl
    python -m benchmarks.ten_minutes --net mine.py      # another net.py than the page's

Runs every command of the page in an empty folder, line by line, with the wheel in the place of the
clone, then its training loop in torch. What pip downloads is counted, and is also told apart: it
depends on the network. Ends with 1 where all of it took more than ten minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.timing import machine, show

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start.md"
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
ALLOWED = 600.0

LOOP = """
import torch
from net import model, data

x, y = data()
batches = list(zip(x.split(64), y.split(64)))
torch.manual_seed(0)
{block}
print("loss", float(loss))
"""


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


def steps(wheel: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield what is shown of each command of the page, and the command as it is run."""
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] == "source":  # the environment's programs are called by path
            continue
        shown = " ".join(words)
        if words[0] == "python":
            words[0] = sys.executable
        if words[0] in ("policysearch", "pip"):
            words[0] = f".venv/bin/{words[0]}"
        words = [str(CONSTRAINTS) if w == ".ci/constraints.txt" else w for w in words]
        yield shown, [f"{wheel}[torch]" if w == ".[torch]" else w for w in words]


def loop() -> str:
    """Return the training loop of the page as a script; on a CPU where torch sees no GPU."""
    block = blocks("python")[-1]
    where = 'device = "cuda" if torch.cuda.is_available() else "cpu"\n'
    return LOOP.format(
        block=where + block.replace(".cuda()", ".to(device)").replace('"cuda"', "device")
    )


def timed(folder: Path, command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds of a command in a folder, by the clock and of CPUs; end where it fails."""
    bare = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    start, before = time.monotonic(), os.times()
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=bare)
    if ran.returncode:
        raise SystemExit(
            f"{' '.join(command)}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}"
        )
    for line in [*ran.stdout.splitlines()[:1], *ran.stdout.splitlines()[-1:]]:
        print(f"    {line[:150]}", flush=True)
    after = os.times()
    busy = after.children_user + after.children_system
    return time.monotonic() - start, busy - before.children_user - before.children_system


def built(folder: Path) -> Path:
    """Return the wheel of this tree, built in a folder."""
    timed(folder, [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", ".", str(ROOT)])
    (wheel,) = folder.glob("policysearch-*.whl")
    return wheel.resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the seconds of every step; return 1 where they are more than ten minutes together."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--net", type=Path)
    options = parser.parse_args(arguments)
    net = options.net.read_text(encoding="utf-8") if options.net else blocks("python")[0]
    rows: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as empty:
        wheel = options.wheel.resolve() if options.wheel else built(Path(made))
        folder = Path(empty)
        (folder / "net.py").write_text(net, encoding="utf-8")
        (folder / "train.py").write_text(loop(), encoding="utf-8")
        for shown, command in [*steps(wheel), ("train.py", [".venv/bin/python", "train.py"])]:
            print(f"$ {shown}", flush=True)
            rows.append((shown, *timed(folder, command)))
    after = [row for row in rows if "pip install" not in row[0]]
    whole = sum(seconds for _, seconds, _ in rows)
    for name, some in (("together", rows), ("without the installation", after)):
        rows = [*rows, (name, *(sum(column) for column in list(zip(*some, strict=True))[1:]))]
    show(machine(), ("command of docs/start.md", "seconds", "of CPUs"), rows)
    return int(whole > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
