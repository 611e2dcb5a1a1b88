"""What a script's optimizer and scheduler are, as keys of [task]; and what state they are in."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from policysearch.graph import FloatArray
from policysearch.optimizers.optimizer import Optimizer, Rule, rules
from policysearch.policy.loss_scale import LossScale
from policysearch.train.groups import Group
from policysearch.train.schedule import Schedule
from policysearch.values import USER_FAULTS, InputError, one_of

STATES: Mapping[str, str] = {"exp_avg": "m", "exp_avg_sq": "v", "momentum_buffer": "velocity"}
"""Names of torch's optimizer states, and ours where those differ."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "betas": ("beta1", "beta2"),
    "alpha": ("beta2",),
    "eps": ("epsilon",),
    "momentum": ("momentum",),
    "dampening": ("dampening",),
    "nesterov": ("nesterov",),
}
"""Options of torch's optimizers, and the keys of [task] that say them."""

NO_MATTER = (
    *("params", "lr", "initial_lr", "weight_decay", "foreach", "fused", "capturable"),
    *("differentiable", "decoupled_weight_decay", "max_lr", "min_lr", "base_momentum"),
    *("max_momentum", "swa_lr", "param_names"),
)
"""Entries of a parameter group that are read apart, or change no value."""

SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
"""What a GradScaler of torch is made with."""


@dataclass(frozen=True)
class Read:
    """An optimizer that was read: keys of [task], its state by name, the updates it has done."""

    recipe: Mapping[str, Any]
    states: Mapping[str, FloatArray] = field(default_factory=dict)
    updates: int = 0


def read_optimizer(optimizer: Any, module: Any) -> Read:
    """Return what an optimizer of torch does to the parameters of `module`.

    Its rates are those of its schedule's top (`initial_lr`, where a scheduler set it). InputError
    for what there is no key of [task] for.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # as Accelerate wraps it
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    rows = [group for group in optimizer.param_groups if group["params"]]
    if not rows:
        raise InputError("optimizer: no parameters; expected those of the module")
    recipe = _settings(optimizer, rows[0])
    rates = [float(row.get("initial_lr", row["lr"])) for row in rows]
    base, decay = max(rates), _usual_decay(rows)
    for row in rows[1:]:
        if _settings(optimizer, row) != recipe:
            raise InputError("optimizer: groups of other settings; expected rates and decays only")
    groups, held = [], set[str]()
    for row, rate in zip(rows, rates, strict=True):
        own = _names(row, names)
        held |= set(own)
        said = base > 0.0 and rate != base, float(row["weight_decay"]) != decay
        if any(said):
            factor = rate / base if said[0] else 1.0
            other = float(row["weight_decay"]) if said[1] else None
            groups.append(Group(tuple(map(_exactly, own)), factor, other))
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    frozen = tuple(_exactly(name) for name in trained if name not in held)
    groups += [Group(frozen, frozen=True)] if frozen else []
    recipe |= {"learning_rate": base, "weight_decay": decay}
    state = _state(optimizer, names, rules()[recipe["optimizer"]])
    return Read({**recipe, **({"groups": tuple(groups)} if groups else {})}, *state)


def _usual_decay(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the weight decay of most numbers."""
    counts: dict[float, int] = {}
    for row in rows:
        decay = float(row["weight_decay"])
        counts[decay] = counts.get(decay, 0) + sum(p.numel() for p in row["params"])
    return max(counts, key=lambda decay: counts[decay])


def _names(row: Mapping[str, Any], names: Mapping[int, str]) -> list[str]:
    own = [names.get(id(parameter)) for parameter in row["params"]]
    if None in own:
        shape = list(row["params"][own.index(None)].shape)
        raise InputError(
            f"optimizer: a parameter {shape} that is not of the module; expected its own"
        )
    return [name for name in own if name is not None]


def _exactly(name: str) -> str:
    """Return the pattern of one name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _settings(optimizer: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind and settings of a parameter group; InputError where no kind does the same."""
    fields = {
        key: value
        for option, keys in SETTINGS.items()
        if option in row and len(_several(row[option])) == len(keys)
        for key, value in zip(keys, _several(row[option]), strict=True)
    }
    kinds = [rule for rule in rules().values() if _is_of(rule, optimizer, fields)]
    if not kinds:
        known = sorted({r.torch.name for r in rules().values() if r.torch and r.emit})
        raise InputError(
            f"optimizer: {type(optimizer).__name__}; expected one of {', '.join(known)}"
        )
    rule = kinds[0]
    assert rule.torch is not None
    own = {key: value for key, value in fields.items() if key in rule.reads}
    said = rule.torch.arguments(Optimizer(rule.name, **own))
    for option, value in row.items():
        if option in NO_MATTER:
            continue
        wanted = said.get(option, _default(optimizer, option))
        if wanted != value and tuple(_several(wanted)) != tuple(_several(value)):
            raise InputError(f"optimizer {option}: {value!r}; expected {wanted!r}")
    return {"optimizer": rule.name, **own}


def _default(optimizer: Any, option: str) -> Any:
    """Return what an option is if nobody says so."""
    made = type(optimizer)([torch.nn.Parameter(torch.zeros(1, 1))], lr=0.1)
    return made.param_groups[0].get(option)


def _is_of(rule: Rule, optimizer: Any, fields: Mapping[str, Any]) -> bool:
    if rule.torch is None or rule.emit is None or rule.torch.name != type(optimizer).__name__:
        return False
    return bool(fields.get("momentum")) == ("momentum" in rule.reads)


def _several(value: Any) -> Sequence[Any]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _state(
    optimizer: Any, names: Mapping[int, str], rule: Rule
) -> tuple[dict[str, FloatArray], int]:
    """Return the optimizer's state by "<parameter>.<state>", and how many updates made it."""
    arrays: dict[str, FloatArray] = {}
    counts = set[int]()
    for parameter, held in optimizer.state.items():
        for key, value in held.items():
            if key == "step":
                counts.add(int(value))
            elif isinstance(value, torch.Tensor):
                own = rule.kept(tuple(parameter.shape))
                name = key if key in own else STATES.get(key, key)
                if name not in own:
                    raise InputError(f"optimizer state {key}; expected {', '.join(own)}")
                array = value.detach().to(torch.float32).cpu().numpy().copy()
                arrays[f"{names[id(parameter)]}.{name}"] = array
    if len(counts) > 1:
        raise InputError(f"optimizer: {sorted(counts)} updates; expected as many of each parameter")
    # SGD counts none: what matters is that the first velocity is not the gradient itself.
    return arrays, counts.pop() if counts else int(bool(arrays))


def loss_scale_of(scaler: Any) -> LossScale | None:
    """Return what a GradScaler of torch does, or one of these arguments; None of None.

    One that is off says nothing: that is all that torch leaves of one where its device is not.
    """
    if scaler is None:
        return None
    if isinstance(scaler, Mapping):
        for name in scaler:
            one_of("scaler", name, SCALER)
        numbers = scaler
    elif not hasattr(scaler, "get_growth_interval"):
        raise InputError(f"scaler: {type(scaler).__name__}; expected a GradScaler, or a dict")
    elif not scaler.is_enabled():
        return None
    else:
        numbers = {name: getattr(scaler, f"_{name}") for name in SCALER}
    return LossScale("dynamic", **{"init_scale": 2.0**16, **numbers})  # torch's own is 2^16


def recorded(optimizer: Any, schedulers: Sequence[tuple[Any, int]], steps: int) -> dict[str, Any]:
    """Return the rate and schedule that `schedulers` give over the next `steps` steps.

    Each steps once in so many steps of the training. They are copied, and stepped in the copy.
    InputError for one that looks at losses, and where groups have schedules of their own.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)
    shadow, copies = _copies(optimizer, [scheduler for scheduler, _ in schedulers])
    rows = [group for group in shadow.param_groups if group["params"]]
    tops = [float(row.get("initial_lr", row["lr"])) for row in rows]
    shares, floors, momenta = list[float](), list[float](), list[float | None]()
    before = [_settings_of(row) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no optimizer has stepped
        for step in range(1, steps + 1):
            share, floor = _line(tops, [float(row["lr"]) for row in rows], step - 1)
            shares.append(share)
            floors.append(floor)
            momenta.append(_momentum(rows, before, step - 1))
            for scheduler, every in copies_of(copies, schedulers):
                if step % every == 0:
                    _step_scheduler(scheduler, step)
    moves = len(set(momenta)) > 1
    if set(shares) == {1.0} and not any(floors) and not moves:
        return {}
    own = tuple(momentum for momentum in momenta if momentum is not None) if moves else ()
    added = tuple(floors) if any(floors) else ()
    return {"schedule": Schedule("recorded", shares=tuple(shares), floors=added, momenta=own)}


def _line(tops: Sequence[float], now: Sequence[float], step: int) -> tuple[float, float]:
    """Return the share and the floor that make the rates `now` of the rates that groups begin with.

    The floor is 0 where one share will do. InputError for rates below 0, and where none do.
    """
    place, least = tops.index(max(tops)), tops.index(min(tops))
    if min(now) < 0.0 or not tops[place]:
        raise InputError(f"scheduler: rates from {min(now):g}; expected none below 0")
    share, floor = now[place] / tops[place], 0.0
    if not _meets(tops, now, share, floor) and tops[place] > tops[least]:
        share = (now[place] - now[least]) / (tops[place] - tops[least])
        floor = now[place] - share * tops[place]
    if share < 0.0 or not _meets(tops, now, share, floor):
        given = f"rates {list(now)} of groups that begin with {list(tops)}"
        raise InputError(f"scheduler, step {step}: {given}; expected one schedule for all")
    return share, floor


def _meets(tops: Sequence[float], now: Sequence[float], share: float, floor: float) -> bool:
    near = 1e-9 * max(now)
    return all(
        math.isclose(top * share + floor, rate, rel_tol=1e-9, abs_tol=near * 1e-3)
        for top, rate in zip(tops, now, strict=True)
    )


def _step_scheduler(scheduler: Any, step: int) -> None:
    """Step a scheduler; InputError where it does not last."""
    try:
        scheduler.step()
    except USER_FAULTS as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"scheduler, step {step}: {reason}; expected one as long as the run"
        ) from error


def _settings_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a scheduler may not move: all settings but rate, momentum and beta1."""
    keys = (*SETTINGS, "weight_decay")
    held = {key: row[key] for key in keys if key in row and key != "momentum"}
    return {**held, "betas": row["betas"][1:]} if "betas" in row else held


def _momentum(
    rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], step: int
) -> float | None:
    """Return the momentum, or beta1, of every group; None of an optimizer that has neither.

    InputError where groups differ, or a scheduler has moved what it may not.
    """
    for row, own in zip(rows, before, strict=True):
        for key, value in _settings_of(row).items():
            if value != own[key]:
                given = f"{key} {value} after {own[key]}"
                valid = "it to move rates and momentum alone"
                raise InputError(f"scheduler, step {step}: {given}; expected {valid}")
    held = {row["betas"][0] if "betas" in row else row.get("momentum") for row in rows}
    if len(held) > 1:
        given = f"momentum {', '.join(sorted(map(str, held)))}"
        raise InputError(f"scheduler, step {step}: {given}; expected one of all groups")
    momentum = held.pop()
    return None if momentum is None else float(momentum)


def copies_of(
    copies: Sequence[Any], schedulers: Sequence[tuple[Any, int]]
) -> list[tuple[Any, int]]:
    """Return the copies with how often each steps."""
    return [(made, every) for made, (_, every) in zip(copies, schedulers, strict=True)]


def _copies(optimizer: Any, schedulers: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return an optimizer of the same groups without their arrays, and schedulers on it."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    for scheduler in schedulers:
        if isinstance(scheduler, plateau):
            raise InputError(
                "scheduler: ReduceLROnPlateau; expected one whose rate is known before the training"
            )
    shadow = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    shadow.param_groups = [
        {key: value for key, value in group.items() if key != "params"} | {"params": [None]}
        for group in optimizer.param_groups
        if group["params"]
    ]
    memo = {id(optimizer): shadow}
    # A scheduler of Accelerate's holds the one of torch; one of a sequence holds several.
    inner = [getattr(scheduler, "scheduler", scheduler) for scheduler in schedulers]
    try:
        return shadow, [_on(copy.deepcopy(scheduler, memo), shadow) for scheduler in inner]
    except Exception as error:
        raise InputError(f"scheduler: {error}; expected one that can be copied") from error


def _on(scheduler: Any, optimizer: Any) -> Any:
    scheduler.optimizer = optimizer
    return scheduler


def arrays_of(module: Any) -> dict[str, FloatArray]:
    """Return the values of the parameters of a module by name."""
    return {n: np.array(p.detach().cpu().numpy()) for n, p in module.named_parameters()}
