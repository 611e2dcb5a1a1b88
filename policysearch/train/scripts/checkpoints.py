"""Checkpoints of scripts, loaded into their module, optimizer and schedulers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from policysearch.values import InputError

MODEL = ("model_state_dict", "state_dict", "model", "module")
OPTIMIZER = ("optimizer_state_dict", "optimizer_states", "optimizer")
SCHEDULER = ("scheduler_state_dict", "lr_schedulers", "lr_scheduler", "scheduler")
"""What the parts of a checkpoint are called: by custom, by Lightning, and by others."""

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Of a folder that Hugging Face's Trainer or Accelerate wrote."""


def restored(path: str | Path, module: Any, optimizer: Any, schedulers: Sequence[Any]) -> None:
    """Load what the checkpoint at `path` has into the module, its optimizer and schedulers.

    It is a file of torch.save, of a state_dict or of several by the names above, or a folder that
    the Trainer wrote. InputError where it does not fit.
    """
    path = Path(path)
    if not isinstance(module, torch.nn.Module):
        raise InputError("init_from: beside a function that makes modules; expected a module")
    held = _folder(path) if path.is_dir() else _file(path)
    plain = held if all(isinstance(v, torch.Tensor) for v in held.values()) else None
    weights = plain if plain is not None else _part(held, MODEL)
    if weights is None:
        known = ", ".join(MODEL)
        raise InputError(f"init_from: {path}: {', '.join(held)}; expected one of {known}")
    _load_state(path, "module", module, weights)
    state = None if plain is not None else _first(_part(held, OPTIMIZER))
    if state is not None and optimizer is not None:
        _load_state(path, "optimizer", getattr(optimizer, "optimizer", optimizer), state)
    states = None if plain is not None else _part(held, SCHEDULER)
    for place, scheduler in enumerate(schedulers):
        own = states[place] if isinstance(states, list) else states
        if own is not None:
            _load_state(path, "scheduler", getattr(scheduler, "scheduler", scheduler), own)


def _part(held: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((held[name] for name in names if name in held), None)


def _first(state: Any) -> Any:
    """Return the state of the one optimizer that a script has."""
    if not isinstance(state, list):
        return state
    if len(state) > 1:
        raise InputError(f"init_from: {len(state)} optimizers; expected one")
    return state[0] if state else None


def _load_state(path: Path, what: str, target: Any, state: Any) -> None:
    try:
        if what == "module":
            _check_keys(target, target.load_state_dict(state, strict=False))
        else:
            target.load_state_dict(state)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(f"init_from: {path}: {what}: {reason}; expected one that fits") from error


def _check_keys(module: Any, found: Any) -> None:
    """Raise ValueError for keys that are missing or unknown; of tied weights one may be missing."""
    named = dict(module.named_parameters(remove_duplicate=False))
    there = {id(value) for name, value in named.items() if name not in found.missing_keys}
    missing = [n for n in found.missing_keys if n not in named or id(named[n]) not in there]
    if missing or found.unexpected_keys:
        raise ValueError(f"missing {missing[:3]}, unknown {list(found.unexpected_keys)[:3]}")


def _file(path: Path) -> dict[str, Any]:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"init_from: {path}: {reason}; expected a file of torch.save") from error
    if not isinstance(held, Mapping) or not held:
        raise InputError(f"init_from: {path}: {type(held).__name__}; expected a dict")
    return dict(held)


def _folder(path: Path) -> dict[str, Any]:
    """Return what a folder of the Trainer holds."""
    weights = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    if weights is None:
        raise InputError(f"init_from: {path}: no weights; expected {' or '.join(WEIGHTS)}")
    if weights.suffix == ".safetensors":
        from safetensors.torch import load_file

        held: dict[str, Any] = {"model": load_file(weights)}
    else:
        held = {"model": _file(weights)}
    for key, name in (("optimizer", "optimizer.pt"), ("scheduler", "scheduler.pt")):
        if (path / name).is_file():
            held[key] = _file(path / name)
    return held


def steps_left(
    init_from: str | Path | None, module: Any, optimizer: Any, schedulers: Sequence[Any], steps: int
) -> int:
    """Load a checkpoint, if there is one; return how many of the `steps` come after it.

    InputError where none does.
    """
    if init_from is None:
        return steps
    restored(init_from, module, optimizer, schedulers)
    done = _steps_done(Path(init_from))
    if done >= steps:
        raise InputError(f"init_from: {init_from}: after step {done} of {steps}; expected fewer")
    return steps - done


def _steps_done(path: Path) -> int:
    """Return the training steps that a checkpoint says it was written after; 0 where it is mute."""
    state = path / "trainer_state.json"
    if state.is_file():
        return int(json.loads(state.read_text(encoding="utf-8")).get("global_step", 0))
    held = {} if path.is_dir() else _file(path)
    return int(held.get("global_step", held.get("step", 0)))
