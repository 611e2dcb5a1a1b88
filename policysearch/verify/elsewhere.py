"""Whether an exported file trains as the emulator does in a framework of another environment.

The framework's own interpreter runs a script of this package that imports none of it. The net is
written there layer by layer, so it is one of built-in layers that both have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.export.targets import target_named
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.train.loss_scale import ScaleState, initial_state, next_state
from policysearch.train.tasks import Task
from policysearch.values import InputError, one_of
from policysearch.verify.forced_steps import forced_steps
from policysearch.verify.jittered_runs import Tell, silent
from policysearch.verify.plain_net import arrays_of, plan_of, products_of, unlike_products
from policysearch.verify.plain_steps import ARRAYS, FILE, FORCED, NEAR, PLAN, RESULT, VALUES
from policysearch.verify.shipped import edits
from policysearch.verify.verdict import Verdict, beside_emulator, values_in

JAX = "jax_training"
SCRIPTS = MappingProxyType(
    {"keras": JAX, "flax": JAX, "qwix": JAX, "mindspore": "mindspore_training"}
)
"""The module here that trains with a file of a target."""
SHARED = "plain_steps"

FUSED = "; sums and activations of 16 bits in float32, rounded once: so a GPU's fused kernels do"
"""What the script of jax has a CPU do: XLA there sums a bias' gradient in bfloat16, say."""

SURROUNDINGS = MappingProxyType(
    {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_allow_excess_precision=false",  # a result is rounded where it says so
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
)


def verify_elsewhere(
    policy: Policy,
    task: Task,
    target: str,
    python: str,
    *,
    steps: int = 10,
    seed: int = 0,
    text: str | None = None,
    progress: Tell = silent,
) -> Verdict:
    """Train in a framework of the interpreter `python`, beside the emulator, from the same values.

    `text` is the file that trains there, else that which is exported now. The dtypes of products
    are looked at, and a forced loss scale. InputError where the framework or its net is not there.
    """
    exporter = target_named(one_of("verify target", target, SCRIPTS))
    task, dataset = task.with_steps(steps), task.load_dataset()
    model = task.build_model(dataset)
    running, fresh = exporter.runs(policy, model), exporter.export(policy, model)
    job = plan_of(task, model, target), arrays_of(task, model, dataset, seed)
    progress(target)
    result = trained_elsewhere(target, python, text or fresh, *job)
    expected = [*products_of(task, running, model, both=target == "qwix")]
    faults = _scale_faults(running.loss_scale, result["events"])
    unlike = [*unlike_products(result["products"], expected), *faults]
    if text is not None and _said(text) != _said(fresh):
        progress(f"{target}, exported now")
        unlike += edits(*map(_run_rows, (result, trained_elsewhere(target, python, fresh, *job))))
    told = {
        **_seen(target, result, expected),
        "edits": tuple(unlike),
        "unlike": (_how(target, result), *exporter.losses(running, model)),
    }
    given = task, running, model, dataset, seed
    made = beside_emulator(result["steps"], *given, progress, **told)
    if made.chaotic:
        progress("single steps of both")
        made = replace(made, forced=forced_steps(*given, result["values"], result["steps"]))
    return made


def _seen(
    target: str, result: Mapping[str, Any], expected: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """Return the fields of a verdict on dtypes and on the keys of the state."""
    dtypes = {where: ", ".join(read for read, _ in rows) for where, rows in expected}
    keys = {key: result[key] for key in ("state_keys", "same_keys")}
    return {"target": target, "dtypes": dtypes, "formats": {}, **keys}


def _how(target: str, result: Mapping[str, Any]) -> str:
    return f"run with {result['version']}{FUSED * (SCRIPTS[target] == JAX)}"


def _said(text: str) -> str:
    """Return what of a file is run."""
    return re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)


def _run_rows(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"calls": (), "events": [[x] for x in result["events"]], "steps": result["steps"]}


def _scale_faults(scale: LossScale, given: list[float]) -> list[str]:
    """Return a line where a dynamic scale moves otherwise than the policy says, when forced."""
    expected = _forced_scales(scale) if scale.kind == "dynamic" else []
    if given == expected:
        return []
    words = [", ".join(f"{x:g}" for x in row) or "a scale that stays" for row in (given, expected)]
    return [f"loss scale, interval and forced steps: {words[0]}; expected {words[1]}"]


def _forced_scales(scale: LossScale) -> list[float]:
    state, scales = initial_state(scale), [float(scale.growth_interval)]
    for place, finite in enumerate((*FORCED[0], *FORCED[1])):
        if place == len(FORCED[0]):
            state = ScaleState(state.scale, max(0, scale.growth_interval - NEAR))
        state = next_state(scale, state, finite, place)
        scales.append(state.scale)
    return scales


def trained_elsewhere(
    target: str, python: str, text: str, plan: Mapping[str, Any], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the training with a file gave in the interpreter `python`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FILE).write_text(text, encoding="utf-8")
        (folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
        np.savez(folder / ARRAYS, **arrays)
        module = _script_copy(folder, SCRIPTS[target])
        try:
            done = subprocess.run(
                [python, "-m", module, name],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, **SURROUNDINGS},
            )
        except OSError as error:
            given = f"--python {python}: {error.strerror}"
            raise InputError(f"{given}; expected an interpreter that has {target}") from None
        if done.returncode:
            raise InputError(_refusal(target, python, done.stderr))
        made: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        made["values"] = values_in(folder / VALUES, len(made["steps"]) + 1)
        return made


def _script_copy(folder: Path, script: str) -> str:
    """Copy a script and what it shares with others to a package in the folder; return its name."""
    *rooms, _ = __name__.split(".")
    place = folder
    for room in rooms:
        place = place / room
        place.mkdir()
        (place / "__init__.py").write_text("", encoding="utf-8")
    for module in (script, SHARED):
        shutil.copy(Path(__file__).with_name(f"{module}.py"), place)
    return ".".join((*rooms, script))


def _refusal(target: str, python: str, said: str) -> str:
    lines = [line for line in said.splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)]
    reason = (lines or said.strip().splitlines() or ["no message"])[-1]
    missing = re.search(r"No module named '(\w+)", reason)
    if missing:
        given = f"verify in {target}: {python} has no {missing[1]}"
        return f"{given}; expected --python of an environment with {target}"
    return f"verify in {target}: {reason}; expected it to train"
