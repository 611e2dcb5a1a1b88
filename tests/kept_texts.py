"""Every page and table of a few studies as text, kept under `tests/data/texts`.

`python -m tests.kept_texts` writes them anew. Trainings are made up from a policy's digest, so that
no digit hangs on the processor; prices are those of the cost model, and change with it.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO
from unittest import mock

import numpy as np
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from policysearch.cli import main
from policysearch.commands.trust import VARIABLE
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.report.against import against, unproven
from policysearch.report.diagnosis_page import diagnosis_page
from policysearch.report.noise_page import noise_page
from policysearch.report.one_trial import trial_page, tried_page
from policysearch.report.page.frame import page
from policysearch.report.page.notebook import policy_html, results_html, study_html, trial_html
from policysearch.report.plots import VIEWS, figure
from policysearch.report.table import csv_text, front_table
from policysearch.study.estimate import Timed
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.workers import executors
from policysearch.study.workers.executors import SerialExecutor
from tests.kept_states import diagnoses, rich, states
from tests.studies import write_study

JOURNAL_OF_TINY = Path("results") / "tiny.journal"
FOLDER = Path(__file__).parent / "data" / "texts"
JOURNAL = Path(__file__).parent / "data" / "journals" / "e9fe553"
MOST, FEW = (5, 5000), (3, 800)
"""Of so many trials all is kept, and so many letters of each view as they are."""
Changes = tuple[tuple[str, str], ...]
SPREAD_TABLE = """[parallel]
devices = 8
tensor = [1, 2]
zero = [0, 2]
all_reduce = ["float32", "bfloat16"]

"""
FILES = {
    "own.py": """import numpy as np


def sides(outputs, labels):
    return float(np.mean(outputs.argmax(1) // 5 == labels // 5))
""",
    "bare.toml": 'base = "float16"',
    "part.toml": """base = "bfloat16"

[[rules]]
match = { layer = "fc2" }
compute = "float32"
""",
}


@contextlib.contextmanager
def made_up() -> Iterator[None]:
    """Train as `rich` says, in this process, and time and paint nothing."""

    def here(objective: Objective, processes: int) -> SerialExecutor:
        return SerialExecutor(objective)

    def timed(_: Objective, policy: Policy) -> Timed:
        return Timed(policy.name, 1e-3, 0.0, 1.0)

    with (
        mock.patch.object(Objective, "measure", rich),
        mock.patch.object(executors, "ProcessExecutor", here),
        mock.patch("policysearch.study.estimate.timed_steps", timed),
        mock.patch("policysearch.report.plots.image", lambda *_: b""),
        mock.patch.object(Figure, "savefig", written),
    ):
        yield


def written(shown: Figure, out: IO[bytes], **_: object) -> None:
    """Write what is on a figure in place of its picture."""
    out.write("\n".join((str(shown.get_size_inches()), *drawn(shown))).encode())


def transcript(commands: Sequence[str]) -> Iterator[str]:
    """Yield each command with what it prints and tells, run in the folder."""
    for command in commands:
        out, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            code = main(shlex.split(command))
        said = re.sub(r"\r[^\n]*", "", told.getvalue())  # the bar, which knows the time
        yield f"$ policysearch {command}\n{out.getvalue()}{said}" + f"ends with {code}\n" * bool(
            code
        )


def steady(text: str) -> str:
    """Return the text without what hangs on the machine: the last digits, versions and times."""
    text = re.sub(r"\d+\.\d{9,}(e-\d+)?", lambda found: f"{float(found[0]):.8g}", text)
    text = re.sub(r"(0\.0\d+)( +\d+% )", lambda f: "-".ljust(len(f[1])) + f[2], text)
    text = re.sub(r"(about|up to) [\d.]+ (seconds|minutes)", r"\1 (time)", text)
    text = re.sub(r"of [\d.]+ GiB", "of (memory)", text)
    text = re.sub(r"machine \S+, numpy [^<\n]*", "(versions)", text)
    text = re.sub(r'\{[^{}]*"numpy": "[^{}]*\}', '"(versions)"', text)
    return re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:[\d.]+(\+00:00)?", "(time)", text)


def abridged(text: str, most: int) -> str:
    """Return the text, or its beginning and a digest of it where it is longer than `most`."""
    text = steady(text)
    if len(text) <= most:
        return text
    return f"{text[:most]}...\n({len(text)} characters, {_digest(text)})\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sections(html: str) -> Iterator[str]:
    """Yield the words of each section of a page, one element a line, with a digest of all of it."""
    bare = re.sub(r"<(style|script)>.*?</\1>", "", steady(html), flags=re.S)
    for part in re.split(r"(?=<section|<figure)", bare):
        words = re.sub(
            r"\s*(<[^>]*>\s*)+", "\n", re.sub(r"<script.*?</script>", "", part, flags=re.S)
        )
        yield f"[{_digest(part)}]{words}"


def drawn(shown: Figure) -> Iterator[str]:
    """Yield what is on a figure, as it is placed: texts, ends of axes, points, lines, areas."""
    for text in shown.findobj(Text):
        if text.get_text():
            x, y = text.get_position()
            yield f"text {x:.4g} {y:.4g} {text.get_text()!r}"
    for axes in shown.axes:
        yield f"x {axes.get_xscale()} {numbers(axes.get_xlim())}; y {numbers(axes.get_ylim())}"
        for line in axes.lines:
            places = numbers(np.ravel(line.get_xydata()))
            yield f"line {line.get_label()} {line.get_color()} {line.get_linestyle()} {places}"
        for patch in axes.patches:
            yield f"patch {patch.get_label()} {numbers(np.ravel(patch.get_extents().get_points()))}"
        for found in axes.collections:
            if isinstance(found, PathCollection):
                places = f"{numbers(np.ravel(found.get_offsets()))} size {found.get_sizes()}"
            else:
                segments = found.get_segments() if isinstance(found, LineCollection) else []
                places = numbers(np.ravel(segments))
            colours = numbers(np.ravel(found.get_edgecolor()))
            yield f"{type(found).__name__} {found.get_label()} {colours} at {places}"


def numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def shown(results: Results, trials: int) -> Iterator[str]:
    """Yield every view of these results under its name, of so many trials all that is known."""
    yield "front\n" + front_table(results)
    yield "csv\n" + csv_text(results)
    yield "noise\n" + noise_page(results)
    yield "against\n" + "\n".join((*against(results), *unproven(results)))
    for view in VIEWS:
        yield f"plot {view.name}\n" + "\n".join(drawn(figure(results, view)))
    for trial in results.trials[:trials]:
        yield f"trial {trial.number}\n" + trial_page(results, trial.number)
        yield f"tried {trial.number}\n" + tried_page(
            results, trial.number, new=trial.number % 2 == 0
        )
        cell = trial_html(trial) + policy_html(trial.policy)
        yield f"{trial!r}\n" + "\n".join(sections(cell))
    for failed in results.failed:
        yield f"failed {failed.number}\n" + trial_page(results, failed.number)
    yield from sections(page(results, "studies/tiny.toml"))
    yield "notebook\n" + "\n".join(sections(results_html(results) + study_html(results.spec)))
    yield repr(results)


WHOLE: Changes = (
    ("trials = 6", 'trials = 8\nbaseline = "bfloat16"'),
    ("confirm_share = 0", "confirm_share = 0.5"),
    ("widths = [8]", "widths = [64, 48]"),
    ("steps = 6", "steps = 40"),
    ("[task]", '[task]\nmetric = "own.py:sides"'),
)
SPREAD: Changes = (
    ('device = "H100-SXM5"', 'device = "MI300X"'),
    ("seeds = [0, 1]", 'seeds = [0]\ntarget = "torch"'),
    ("widths = [8]", "widths = [64, 48]"),
    ("steps = 6", "steps = 40"),
    ('ops = ["tanh"]\n', ""),
    ("least_gain = 0\n", ""),
    ("[space]", SPREAD_TABLE + '[goal]\nwant = "fastest"\ngap = 0.01\n\n[space]'),
)
NORMS: Changes = (
    ("trials = 6", 'trials = 4\ntarget = "transformer_engine"'),
    (
        'model = "mlp"\nactivation = "tanh"\nwidths = [8]',
        'model = "transformer"\nwidths = [16, 32]',
    ),
    ('ops = ["tanh"]\n', 'scale_schedules = ["0:8 0.5:10"]\n'),
    ('["none", "fixed", "dynamic"]', '["none", "schedule", "dynamic"]'),
    ('"mindspore.O0", "apex.O3"', '"te.current"'),
)
BEFORE = "before"
"""The journal of `tests/data/journals`: a search by expected gain that began with short runs."""

COMMANDS: Mapping[str, tuple[Changes, tuple[str, ...]]] = MappingProxyType(
    {
        "whole": (
            WHOLE,
            (
                "run tiny.toml --processes 1",
                "show tiny.toml",
                "show tiny.toml --csv",
                "show tiny.toml --json",
                "try preset:float16 --study tiny.toml --processes 1",
                "confirm tiny.toml --processes 1",
                *(f"show tiny.toml --trial {number}" for number in (0, 1, 3, 4, 5)),
                "noise tiny.toml",
                "report tiny.toml --json",
                "report tiny.toml",
                "export tiny.toml",
            ),
        ),
        "asked": (
            WHOLE,
            (
                "estimate tiny.toml --processes 1",
                "run tiny.toml --processes 1 --no-confirm",
                "why 1 fc2 --study tiny.toml --processes 1",
                "why 5 --study tiny.toml",
                "propose tiny.toml",
                "plot tiny.toml",
                "profile preset:bfloat16 --study tiny.toml --largest-batch --optimizers",
                "explain preset:te.current --study tiny.toml",
                "explain preset:mindspore.O2 --study tiny.toml --diff",
                "rules preset:mindspore.O2 --study tiny.toml",
                "diagnose preset:apex.O3 --study tiny.toml --budget 2",
                "repair tiny.toml",
            ),
        ),
        "spread": (
            SPREAD,
            (
                "run tiny.toml --processes 1",
                "show tiny.toml",
                *(f"show tiny.toml --trial {number}" for number in (1, 3)),
                "noise tiny.toml",
                "report tiny.toml",
                "profile preset:bfloat16 --study tiny.toml --largest-batch --optimizers",
                "export tiny.toml",
                "inspect results/tiny-torch.py --study tiny.toml",
            ),
        ),
        "norms": (
            NORMS,
            (
                "run tiny.toml --processes 1",
                *(f"show tiny.toml --trial {number}" for number in (2, 3)),
                "report tiny.toml",
                "export tiny.toml --trial 2",
                "profile preset:te.current --study tiny.toml",
            ),
        ),
        "no study": (
            (),
            (
                "presets",
                "formats",
                "hardware",
                "hardware H100-SXM5",
                "targets",
                "profile preset:mindspore.O2 --model lenet5 --out plot.png",
                "profile preset:te.nvfp4 --model gpt --stack torch.eager --recompute block1",
                "explain preset:te.nvfp4 --model mlp",
                "explain preset:torch.autocast.float16 --model transformer --diff",
                "rules preset:torch.autocast.float16 --model lenet5",
                "apply bare.toml --model mlp",
                "apply part.toml --model mlp --out made.json",
            ),
        ),
        BEFORE: (
            (),
            (
                "show before.toml",
                *(f"show before.toml --trial {number}" for number in (0, 3, 5)),
                "noise before.toml",
                "report before.toml",
                "explain preset:mindspore.O2 --study before.toml --diff",
            ),
        ),
    }
)
"""Study files, TINY with changes, and what is asked of each, one after the other."""


def file_of(name: str) -> Path:
    """Return where the text of that name is kept."""
    return FOLDER / f"{name.replace(' ', '-')}.txt"


def texts() -> dict[str, Callable[[], str]]:
    """Return what makes each text, by the name of its file."""
    made = {name: functools.partial(of_state, name) for name in states()}
    made |= {name: functools.partial(of_commands, name) for name in COMMANDS}
    return made | {"diagnoses": of_diagnoses}


def of_state(name: str) -> str:
    """Return every view of a state, all of it for the first of them."""
    make, first = states()[name], next(iter(states()))
    trials, letters = MOST if name == first else FEW
    return "\n".join(abridged(view, letters) for view in shown(make(), trials))


def asked(results: Results) -> Iterator[str]:
    """Yield what the methods of results return, as notebooks call them."""
    for trial in (1, 3):
        yield results.profile(trial)
    yield results.why(1)
    yield results.why(1, "fc1", processes=0)
    yield results.propose()


def of_diagnoses() -> str:
    """Return the page of every kind of diagnosis."""
    return "\n\n".join(f"{name}\n{diagnosis_page(*kind)}" for name, kind in diagnoses().items())


def of_commands(name: str) -> str:
    """Return what the commands print, beside a study file in a folder of their own."""
    changes, commands = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), made_up():
        write_study(Path(), *changes)
        for file, text in FILES.items():
            Path(file).write_text(text, encoding="utf-8")
        Path("results").mkdir()
        Path("before.toml").write_bytes((JOURNAL / "before.toml").read_bytes())
        journal = gzip.decompress((JOURNAL / "before.journal.gz").read_bytes())
        Path("results/before.journal").write_bytes(journal)
        said = [*transcript(commands)]
        said += [path.read_text(encoding="utf-8") for path in Path().glob("*.png")]
        for html in Path("results").glob("*.html"):
            said += sections(html.read_text(encoding="utf-8"))
        if name == "spread":
            said += asked(load_results(load_spec(Path("tiny.toml")), JOURNAL_OF_TINY))
    return "\n".join(abridged(part, MOST[1]) for part in said)


if __name__ == "__main__":
    os.environ[VARIABLE] = "1"
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    for name, make in texts().items():
        file_of(name).write_text(make(), encoding="utf-8")
