"""`python -m benchmarks.mutants`: does a test fail where the code is wrong?

Draws mutants of all modules of the package, runs for each, in a copy of the tree, the tests that
pass through its lines, and prints those that no test notices. Goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import signal
import sys
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.mutants.code import Key, Mutant, drawn, examples_of
from benchmarks.mutants.record import Record, leave_out, record
from benchmarks.mutants.tree import TIMEOUT, copy_tree, in_child, killer, mutated, warm_up

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "mutants"
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
ALWAYS = ("tests/test_frozen.py",)
"""Look at every module without passing through its lines."""
RECORD_SECONDS = 600.0
"""A test file that takes longer on sound code hangs in a forked process, and says nothing."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant of a tree: the test that killed it, None where it survived."""

    killer: str | None
    tree: str


def main() -> None:
    """Run the command; what was found before an interrupt is kept."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(_options())
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here")
        raise SystemExit(130) from None


def _run(options: argparse.Namespace) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    state = KEPT / f"seed-{options.seed}.jsonl"
    trees = [KEPT / f"tree-{number}" for number in range(options.processes)]
    for tree in trees:
        copy_tree(ROOT, tree)
    warm_up()
    tests = _recorded(trees)
    mutants = drawn(trees[0], modules(trees[0]), options.seed, options.sample)
    excused, before = equivalent(), read_verdicts(state)
    now = digest(trees[0], "policysearch/**/*.py", "tests/**/*.py")
    numbered: list[tuple[int, Mutant]] = []
    verdicts: dict[Key, str | None] = {}
    for number, mutant in enumerate(mutants, 1):
        old = before.get(mutant.key)
        if mutant.key in excused:
            continue
        if old is None or (old.killer is None if options.survivors else old.tree != now):
            numbered.append((number, mutant))
        else:
            verdicts[mutant.key] = old.killer

    def try_some(part: int) -> None:
        for number, mutant in numbered[part :: len(trees)]:
            last = before.get(mutant.key)
            first = [last.killer] if last is not None and last.killer in tests.seconds else []
            new = Verdict(_killer(trees, part, mutant, tests, first, options.budget), now)
            _keep(state, mutant.key, new)
            said = new.killer or "SURVIVED"
            print(f"{number}/{len(mutants)} {mutant.place.module}: {said}", flush=True)

    _in_processes(try_some, len(trees))
    after = read_verdicts(state)
    verdicts.update({mutant.key: after[mutant.key].killer for _, mutant in numbered})
    _report(mutants, verdicts, excused)


def modules(tree: Path) -> list[str]:
    """Return every module of the package, by its place in the tree; what is in C is none."""
    return sorted(str(file.relative_to(tree)) for file in tree.glob("policysearch/**/*.py"))


def _in_processes(work: Callable[[int], None], count: int) -> None:
    """Do work(0), work(1), ... in a forked process each; end all where one fails or is stopped."""
    children = [_forked(work, part) for part in range(count)]
    try:
        while children:
            child, status = os.wait()
            children.remove(child)
            if status != 0:
                raise KeyboardInterrupt
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
        for child in children:
            os.waitpid(child, 0)


def _forked(work: Callable[[int], None], part: int) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        work(part)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        os._exit(code)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="how many mutants")
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="SECONDS", help="of tests per mutant"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="so many at once")
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="after a change try only what survived; a score needs a run without this",
    )
    return parser.parse_args()


def _recorded(trees: Sequence[Path]) -> Record:
    """Return which test passes where; test files that changed run for that, once."""
    folder, tree = KEPT / "record", trees[0]
    folder.mkdir(exist_ok=True)
    rest = digest(tree, "policysearch/**/*.py", "tests/[!t]*.py")
    files = sorted(str(file.relative_to(tree)) for file in tree.glob("tests/**/test_*.py"))
    stamps = {name: digest(tree, name) + rest for name in files}
    missing = [name for name in files if not Record.has(folder, name, stamps[name])]

    def record_some(part: int) -> None:
        for name in missing[part :: len(trees)]:
            log = KEPT / f"record-{part}.log"
            work = partial(record, folder, trees[part], name, stamps[name])
            code = in_child(trees[part], work, RECORD_SECONDS, log)
            if code is None:
                leave_out(folder, name, stamps[name])
            elif code != 0:
                raise SystemExit(f"{name} cannot be run on sound code: see {log}")

    if missing:
        print(f"running {len(missing)} test files once on sound code", flush=True)
        _in_processes(record_some, len(trees))
    tests = Record(folder, files, ALWAYS)
    if tests.failed:
        print(
            f"left out, for they fail or hang on sound code: {', '.join(tests.failed)}", flush=True
        )
    return tests


def _killer(
    trees: Sequence[Path],
    part: int,
    mutant: Mutant,
    tests: Record,
    first: Sequence[str],
    budget_seconds: float,
) -> str | None:
    """Return the test that kills the mutant in the tree of that number: the likeliest go first."""
    tree, log = trees[part], KEPT / f"mutant-{part}.log"
    chosen = tests.of(mutant.place.module, mutant.place.lines, budget_seconds)
    with mutated(tree / mutant.place.module, mutant.after):
        for names in (list(first), *chosen):
            if names:
                seconds = sum(tests.seconds[name] for name in names)
                found = killer(tree, names, 60.0 + 5.0 * seconds, log)
                if found is not None:
                    return found
    return None


def equivalent() -> dict[Key, str]:
    """Return why no test can tell these mutants from the code, by their keys."""
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    return {(r["module"], r["scope"], r["before"], r["after"]): r["reason"] for r in rows}


def digest(tree: Path, *patterns: str) -> str:
    """Return a hash of the files of `tree` that fit the patterns."""
    found = hashlib.sha256()
    for file in sorted({file for pattern in patterns for file in tree.glob(pattern)}):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def read_verdicts(state: Path) -> dict[Key, Verdict]:
    """Return the last verdict on each mutant; a line cut short by an interrupt is none."""
    found: dict[Key, Verdict] = {}
    for line in state.read_text().splitlines() if state.exists() else ():
        try:
            plain = json.loads(line)
            module, scope, old, new = plain["key"]
            found[module, scope, old, new] = Verdict(plain["killer"], plain["tree"])
        except (ValueError, KeyError):
            continue
    return found


def _keep(state: Path, key: Key, verdict: Verdict) -> None:
    with state.open("a") as file:
        file.write(json.dumps({"key": key, "killer": verdict.killer, "tree": verdict.tree}) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _report(
    mutants: Sequence[Mutant], verdicts: dict[Key, str | None], excused: dict[Key, str]
) -> None:
    asked = [mutant for mutant in mutants if mutant.key in verdicts]
    for mutant in asked:
        if verdicts[mutant.key] is None:
            where = mutant.place.scope or "the module"
            print(f"\nsurvived: {mutant.operator} in {where}\n{mutant.diff}")
    killed = Counter(m.place.module for m in asked if verdicts[m.key] is not None)
    print()
    for module, count in sorted(Counter(m.place.module for m in asked).items()):
        print(f"{module}: {killed[module]} of {count}")
    sound, total = sum(killed.values()), len(asked)
    equal = sum(mutant.key in excused for mutant in mutants)
    made = sum(len([*examples_of(name, tree)]) for name, tree in _trees())
    print(f"left out: the inside of {made} functions and lambdas that make an op's example")
    late = sum(verdicts[mutant.key] == TIMEOUT for mutant in asked)
    share = 100 * sound / max(total, 1)
    print(f"score {share:.1f} %: {sound} of {total} killed, {equal} more are equivalent")
    if late:
        print(f"{late} of these by time alone, which on a busy machine says nothing")


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for module in modules(ROOT):
        yield module, ast.parse((ROOT / module).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
