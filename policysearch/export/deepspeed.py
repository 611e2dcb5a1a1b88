"""Export to DeepSpeed: the JSON of a run. Nothing in it differs from layer to layer."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policysearch.export.levels import BASE, field_losses, one_dtype, plain
from policysearch.export.reading import (
    About,
    Given,
    Reading,
    brief_name,
    grouped,
    in_words,
    json_object,
    policy_of,
)
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.values import InputError, one_of

SUFFIX = ".json"
ABOUT = About(
    "JSON of deepspeed.initialize",
    "one dtype of the whole module (norms too), its loss scale, the dtypes of the reduction and of "
    "sums over micro-batches",
    "deepspeed 0.19.8 (its sources and config class, 2026-08)",
    "read back (policysearch inspect)",
)
AUTO = "auto"
PRECISE = ("fp16", "bf16", "torch_autocast", "communication_data_type", "data_types", "fp8", "amp")
NOT_READ = {"fp8": "DeepSpeed has no such block", "amp": "that is Apex, which has its own target"}
LOW_MASTERS = "masters and states are kept low (ZeRO 1 and above): read as float32 ones"
DTYPES = ("float32", "float16", "bfloat16")
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
KNOWN = {
    "fp16": "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis "
    "consecutive_hysteresis min_loss_scale fp16_master_weights_and_grads",
    "bf16": "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads "
    "bf16_optimizer_states",
    "torch_autocast": "enabled dtype lower_precision_safe_modules",
}
"""The keys of the blocks that say precision: a mistake in the last one is silent in DeepSpeed."""


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a run with the file obeys when it is given this one."""
    dtype = one_dtype(policy)
    return replace(
        plain(policy),
        layers=_layers(dtype, _sum_dtype(policy, model), model),
        master_weights=True,
        optimizer_state="float32",
        all_reduce=policy.all_reduce if policy.all_reduce in DTYPES else "float32",
        loss_scale=_scale(policy.loss_scale) if dtype == "float16" else LossScale(),
    )


def _sum_dtype(policy: Policy, model: Model) -> str | None:
    """Return what gradients are summed in over micro-batches, where all parameters say one."""
    held = (name for name in model.layer_names if model.parameters_of(name))
    asked = {policy.layer(name).gradient_sum for name in held}
    return asked.pop() if len(asked) == 1 and asked <= {*DTYPES} else None


def _layers(dtype: str, summed: str | None, model: Model) -> tuple[tuple[str, LayerPolicy], ...]:
    row = uniform_layer(dtype)
    own = replace(row, gradient_sum=summed)
    return tuple((name, own if model.parameters_of(name) else row) for name in model.layer_names)


def _scale(asked: LossScale) -> LossScale:
    """Return a scale whose first value is a power of two, and whose floor is a whole number."""
    if asked.kind == "fixed" and asked.init_scale != 1.0:
        return LossScale("fixed", asked.init_scale)
    if asked.kind != "dynamic":
        return LossScale()
    lowest = float(max(1, math.ceil(asked.min_scale or 1.0)))
    power = max(math.ceil(math.log2(lowest)), min(126, round(math.log2(asked.init_scale))))
    return LossScale("dynamic", 2.0**power, 2.0, 0.5, asked.growth_interval, lowest)


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what a run with the file does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    return tuple(field_losses(policy, runs(policy, model), "deepspeed"))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats, where all others do as well."""
    return formats in [uniform_layer(name) for name in DTYPES]


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return the JSON; "_policysearch" in it, which DeepSpeed ignores, says what it is of."""
    running, lines = runs(policy, model), losses(policy, model)
    dtype, scale = one_dtype(policy), running.loss_scale
    fp16: dict[str, Any] = {"enabled": dtype == "float16"}
    if scale.kind == "fixed":
        fp16["loss_scale"] = scale.init_scale
    elif scale.kind == "dynamic":
        fp16 |= {
            "loss_scale": 0,
            "initial_scale_power": int(math.log2(scale.init_scale)),
            "loss_scale_window": scale.growth_interval,
            "hysteresis": 1,
            "min_loss_scale": int(scale.min_scale or 1),
        }
    elif fp16["enabled"]:
        fp16["loss_scale"] = 1
    said = {
        "policy": brief_name(policy.name),
        "asks for": in_words(policy),
        "digest": policy.digest,
        "notes": list(notes),
        "not as the policy says": grouped(lines),
        "layers": {name: dtype for name, _ in running.layers},
    }
    data = {
        "fp16": fp16,
        "bf16": {"enabled": dtype == "bfloat16"},
        "communication_data_type": SHORT[running.all_reduce],
        "data_types": {"grad_accum_dtype": SHORT[_sum_dtype(running, model) or "float32"]},
        "_policysearch": said,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the JSON of a run gives the layers of `model`: one dtype."""
    data = json_object(text, where)
    blocks = {name: _block(data, name, where) for name in KNOWN}
    on = [name for name in KNOWN if blocks[name].get("enabled") is True]
    if {"fp16", "bf16"} <= set(on):
        raise InputError(f"{where}: fp16 and bf16 are enabled; expected one of them")
    dtype, rule = "float32", "no block"
    if on:
        rule, dtype = on[0], {"fp16": "float16", "bf16": "bfloat16"}.get(on[0], "")
        said = str(blocks["torch_autocast"].get("dtype", "bfloat16")).removeprefix("torch.")
        dtype = dtype or one_of(f"{where}: torch_autocast: dtype", said, ("float16", "bfloat16"))
    low = on and on[0] != "torch_autocast" and _low_masters(blocks[on[0]], on[0])
    zero = data.get("zero_optimization", {})
    if low and not (isinstance(zero, dict) and zero.get("stage", 0)):
        said = f"{where}: {on[0]}: masters kept low without ZeRO"
        raise InputError(f"{said}; expected zero_optimization.stage 1, 2 or 3")
    reduced = {short: name for name, short in SHORT.items()}
    types = data.get("data_types", {})
    said = (types.get("grad_accum_dtype") if isinstance(types, dict) else None) or "fp32"
    summed = reduced[one_of(f"{where}: data_types: grad_accum_dtype", said, reduced)]
    layers = _layers(dtype, summed if summed != "float32" else None, model)
    given = tuple(Given(name, name, rule, row) for name, row in layers)
    policy = policy_of(
        given,
        model,
        f"imported from {where}",
        BASE,
        all_reduce=reduced[
            one_of(
                f"{where}: communication_data_type",
                data.get("communication_data_type", "fp32"),
                reduced,
            )
        ],
        loss_scale=_scale_of(blocks["fp16"], where) if dtype == "float16" else LossScale(),
    )
    traps = (*_traps(blocks, on), *_top_level(data))
    return Reading(policy, given, (), traps + (LOW_MASTERS,) * bool(low))


def _block(data: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    block = data.get(name, {})
    if not isinstance(block, dict):
        raise InputError(f"{where}: {name}: {block!r}; expected an object")
    for key in block:
        one_of(f"{where}: {name}: key", key, KNOWN[name].split())
    return block


def _low_masters(block: Mapping[str, Any], name: str) -> bool:
    keys = (f"{name}_master_weights_and_grads", f"{name}_optimizer_states")
    return any(block.get(key) is True for key in keys)


def _top_level(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for what is not read, and for keys near to those that are: none is refused."""
    for name, why in NOT_READ.items():
        if data.get(name, {}).get("enabled"):
            yield f"{name}: not read: {why}"
    for key in data:
        near = difflib.get_close_matches(key, PRECISE, n=1, cutoff=0.75)
        if near and key not in PRECISE:
            yield f"{key}: unknown to DeepSpeed, which says nothing; expected {near[0]}"


def _scale_of(block: Mapping[str, Any], where: str) -> LossScale:
    block = {key: value for key, value in block.items() if value != AUTO}
    if fixed := block.get("loss_scale", 0):
        return LossScale() if fixed == 1 else LossScale("fixed", float(fixed))
    for key in ("initial_scale_power", "min_loss_scale"):
        if not isinstance(block.get(key, 1), int):
            raise InputError(f"{where}: fp16: {key}: {block[key]!r}; expected a whole number")
    first, lowest = 2.0 ** block.get("initial_scale_power", 16), block.get("min_loss_scale", 1)
    window = block.get("loss_scale_window", 1000)
    return LossScale("dynamic", max(first, lowest), 2.0, 0.5, window, float(lowest))


def _traps(blocks: Mapping[str, Mapping[str, Any]], on: Sequence[str]) -> Iterator[str]:
    auto = [name for name in KNOWN if blocks[name].get("enabled") == AUTO]
    if auto:
        yield (
            f"{' and '.join(auto)}: enabled is {AUTO!r}: what --fp16 or --bf16 of Hugging Face's "
            "Trainer says; read as off"
        )
    if "fp16" in on and blocks["fp16"].get("hysteresis", 2) != 1:
        yield "hysteresis: 2 overflows halve the scale once; read as 1, which a policy has here"
    if "fp16" in on and not blocks["fp16"].get("loss_scale"):
        yield "min_loss_scale: an overflow at it raises there, where torch's scaler goes on"
    if "fp16" in on and "torch_autocast" in on:
        yield "torch_autocast beside fp16: DeepSpeed accepts both; the module is float16 anyway"
    if blocks["torch_autocast"].get("lower_precision_safe_modules"):
        yield "lower_precision_safe_modules: classes that decide the reduction, not the computing"
    if "fp16" in on or "bf16" in on:
        yield f"{on[0]}: casts the whole module, norms too: no layer keeps float32"
