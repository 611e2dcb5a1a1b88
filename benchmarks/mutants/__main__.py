"""`python -m benchmarks.mutants`: does a test fail where the code is wrong?

Draws mutants of the modules below, runs for each, in a copy of the tree, the tests that pass
through its lines, and prints those that no test notices. Goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutants.code import Key, Mutant, drawn
from benchmarks.mutants.record import LINES, Record, record
from benchmarks.mutants.tree import copy_tree, in_child, killer, mutated, warm_up

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "mutants"
EQUIVALENT = Path(__file__).parent / "equivalent.toml"
MODULES = (
    *("objective/objective.py", "objective/pricing.py", "objective/score.py"),
    *("rewrite/policy_pass.py", "rewrite/scaling_pass.py", "rewrite/update_pass.py"),
    *("ops/update.py", "ops/optimizers.py", "ops/eager_update.py"),
    *("train/loss_scale.py", "train/trainer.py", "train/divergence.py", "train/lost_values.py"),
    *("train/tasks.py", "train/training.py", "train/checkpoint.py"),
    *(
        "study/results/results.py",
        "search/hypervolume.py",
        "study/journal/identity.py",
        "study/journal/records.py",
    ),
    *("study/scoring.py", "study/journal/trials.py", "study/results/noise.py"),
    *("study/journal/storage.py", "study/journal/storage.py"),
    *("search/fit.py", "search/surrogate.py", "search/surrogate.py", "search/surrogate.py"),
    "search/posterior.py",
    *(
        "search/posterior.py",
        "search/fidelity.py",
        "study/low_fidelity.py",
        "search/acquisition.py",
    ),
    *(
        "study/results/idle.py",
        "study/results/confirmation.py",
        "study/stopping.py",
        "study/results/results.py",
    ),
    "train/user_code.py",
    *("export/targets.py", "export/torch.py", "export/torch_template.py"),
    *("policy/presets.py", "policy/policy.py", "policy/loss_scale.py"),
)

# The tests that ask whether these modules are right, and take seconds.
ASKED = (
    *("policy_pass", "scaling", "scaling_state", "scaling_ops", "optimizers", "pure_low", "memory"),
    *("loss_scale", "trainer", "trainer_steps", "probe", "objective", "tasks", "five_formats"),
    *("optimizer_state", "divergence", "schedule", "recorded", "updates", "gradient_formats"),
    *("results", "front", "identity", "records", "journal", "repair", "study", "failures"),
    *("noise", "confirm", "export_losses", "export_torch", "exporters", "presets"),
    *("documented_presets", "policy", "policy_limits", "digest", "schema", "frozen"),
    *("casting_modes", "checkpoint", "conversion", "built_in_rules", "pinned", "phases"),
    *("early_sign", "run_signs", "one_trial", "study_start", "swamped", "export_scaler"),
    *(
        "belief",
        "gap_fit",
        "gap_model",
        "worlds",
        "rough_prices",
        "runs",
        "looking",
        "hypervolume",
        "stopping",
    ),
    *("inert", "confirm_again", "picks", "own_file", "own_net"),
)
ALWAYS = ("tests/test_frozen.py",)
"""Look at every module without passing through its lines."""


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
    tree, state = KEPT / "tree", KEPT / f"seed-{options.seed}.jsonl"
    copy_tree(ROOT, tree)
    warm_up()
    tests = _recorded(tree)
    modules = [f"policysearch/{name}" for name in MODULES]
    mutants = drawn(tree, modules, options.seed, options.sample)
    excused = equivalent()
    before = read_verdicts(state)
    now = digest(tree, "policysearch/**/*.py", "tests/**/*.py")
    verdicts: dict[Key, str | None] = {}
    for number, mutant in enumerate(mutants, 1):
        if mutant.key in excused:
            continue
        old = before.get(mutant.key)
        if old is None or (old.killer is None if options.survivors else old.tree != now):
            first = [old.killer] if old is not None and old.killer in tests.seconds else []
            old = Verdict(_killer(tree, mutant, tests, first, options.budget), now)
            _keep(state, mutant.key, old)
            said = old.killer or "SURVIVED"
            print(f"{number}/{len(mutants)} {mutant.place.module}: {said}", flush=True)
        verdicts[mutant.key] = old.killer
    _report(mutants, verdicts, excused)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="how many mutants")
    parser.add_argument(
        "--budget", type=float, default=20.0, metavar="SECONDS", help="of tests per mutant"
    )
    parser.add_argument(
        "--survivors",
        action="store_true",
        help="after a change try only what survived; a score needs a run without this",
    )
    return parser.parse_args()


def _recorded(tree: Path) -> Record:
    """Return which test passes where; test files that changed run for that, once."""
    folder = KEPT / "record"
    folder.mkdir(exist_ok=True)
    files = [f"tests/test_{name}.py" for name in ASKED]
    now = {name: digest(tree, name) for name in files if (tree / name).exists()}
    rest = digest(tree, "policysearch/**/*.py", "tests/[!t]*.py")
    stamp = folder / "stamp.json"
    before: dict[str, str] = json.loads(stamp.read_text()) if stamp.exists() else {}
    if before.get("rest") != rest:
        before = {}
        (folder / LINES).unlink(missing_ok=True)
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        print(f"running {len(changed)} test files once on sound code", flush=True)
        modules = [str(tree / "policysearch" / name) for name in MODULES]
        log = KEPT / "record.log"
        code = in_child(tree, lambda: record(folder, modules, changed), 7200.0, log)
        if code != 0:
            raise SystemExit(f"the tests fail on sound code: see {log}")
        stamp.write_text(json.dumps({**now, "rest": rest}))
    return Record(folder, ALWAYS)


def _killer(
    tree: Path, mutant: Mutant, tests: Record, first: Sequence[str], budget_seconds: float
) -> str | None:
    file = tree / mutant.place.module
    chosen = tests.of(file, mutant.place.lines, budget_seconds)
    ordered = list(dict.fromkeys([*first, *chosen]))
    if not ordered:
        return None
    seconds = sum(tests.seconds[name] for name in ordered)
    with mutated(file, mutant.after):
        return killer(tree, ordered, 60.0 + 5.0 * seconds, KEPT / "mutant.log")


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
    share = 100 * sound / max(total, 1)
    print(f"score {share:.1f} %: {sound} of {total} killed, {equal} more are equivalent")


if __name__ == "__main__":
    main()
