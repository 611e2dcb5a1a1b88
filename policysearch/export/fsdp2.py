"""Export to FSDP2: a MixedPrecisionPolicy for every wrap, which is a block or a layer outside."""

from __future__ import annotations

import pprint
from dataclasses import replace

from policysearch.export.levels import Levels, constants, fixed_scale
from policysearch.export.reading import About, Reading
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.rewrite.stacks import stacks_of

TEMPLATE = '''\
$head
#
#     shard(module, mesh)              # before the optimizer is made
#     scaler = loss_scaler()           # None where the policy scales nothing
#
# A wrap is cast as a whole, norms too, and hands on what it computed in. Its gradients are reduced,
# and summed before where they are not reduced yet, in its reduce_dtype. The root casts nothing it
# is given (it would round what a float32 first child reads) and returns float32.

import torch

# layer: (dtype it computes in, dtype of its parameters)
LAYERS = $layers

# submodule that is sharded by itself: its param_dtype and its reduce_dtype
WRAPS = $wraps

LOSS_SCALE = $loss_scale


def shard(module, mesh=None):
    """Call fully_shard on every wrap and on the module, in place, and return the module.

    Raises ValueError where a wrap is missing, or a parameter lies in none.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    parts = dict(module.named_modules())
    missing = [name for name in WRAPS if name not in parts]
    names = [name for name, _ in module.named_parameters()]
    outside = [x for x in names if not any(x.startswith(f"{wrap}.") for wrap in WRAPS)]
    if missing or outside:
        raise ValueError(f"module: {missing or outside}; expected the wraps {list(WRAPS)}")
    for name, dtypes in WRAPS.items():
        low = MixedPrecisionPolicy(*(getattr(torch, dtype) for dtype in dtypes))
        fully_shard(parts[name], mesh=mesh, mp_policy=low)
    whole = MixedPrecisionPolicy(reduce_dtype=torch.float32, output_dtype=torch.float32)
    return fully_shard(module, mesh=mesh, mp_policy=whole)


def loss_scaler(device="cuda"):
    """Return torch's GradScaler; a fixed scale neither grows nor backs off."""
    if LOSS_SCALE["kind"] == "none":
        return None
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    given = {name: LOSS_SCALE[name] for name in names}
    if LOSS_SCALE["kind"] == "fixed":
        given = {"init_scale": given["init_scale"], "growth_interval": 2**31 - 1}
    return torch.amp.GradScaler(device, **given)
'''


def wraps_of(model: Model) -> dict[str, list[str]]:
    """Return the layers of each wrap: those of a block, or a layer outside with parameters."""
    found: dict[str, list[str]] = {}
    for stack in stacks_of(model.layer_names):
        for block in stack.blocks:
            for leaf, layer in block.items():
                found.setdefault(layer.removesuffix(leaf).removesuffix("."), []).append(layer)
    inside = {layer for layers in found.values() for layer in layers}
    found |= {layer: [layer] for layer in model.layer_names if layer and layer not in inside}
    held = {wrap: any(map(model.parameters_of, layers)) for wrap, layers in found.items()}
    return {wrap: layers for wrap, layers in found.items() if wrap and held[wrap]}


class _Wraps(Levels):
    """Levels that are those of a wrap: the widest that one of its layers with parameters has."""

    def runs(self, policy: Policy, model: Model) -> Policy:
        running = super().runs(policy, model)
        usual = policy.all_reduce if policy.all_reduce in self.dtypes else "float32"
        wrapped: dict[str, str] = {}
        reduced: dict[str, str] = {}
        for layers in wraps_of(model).values():
            own = [layer for layer in layers if model.parameters_of(layer)]
            wrapped |= dict.fromkeys(layers, _widest([running.layer(x).compute for x in own]))
            asked = [policy.reductions.get(layer, policy.all_reduce) for layer in own]
            there = _widest([x if x in self.dtypes else "float32" for x in asked])
            said = there != usual or all(layer in policy.reductions for layer in own)
            reduced |= dict.fromkeys(layers if said else (), there)
        made, last = {}, "float32"
        for name in model.layer_names:  # a function outside runs in what it is given
            made[name] = last = wrapped.get(name, last)
        named = {name: uniform_layer(row) for name, row in made.items()}
        named |= {n: replace(named[n], all_reduce=format) for n, format in reduced.items()}
        return replace(running, layers=tuple(named.items()), all_reduce=usual)

    def read(self, text: str, model: Model, where: str) -> Reading:
        """Return what the file gives; files of before say no reduce_dtype, which was float32."""
        found = super().read(text, model, where)
        wraps = constants(text, where, ("WRAPS",))["WRAPS"]
        rows = {wrap: row[1] for wrap, row in wraps.items() if not isinstance(row, str)}
        usual = rows[next(iter(rows))] if len({*rows.values()}) == 1 else "float32"
        reduced = {
            layer: replace(found.policy.layer(layer), all_reduce=rows[wrap])
            for wrap, layers in wraps_of(model).items()
            for layer in layers
            if rows.get(wrap, usual) != usual
        }
        policy = replace(found.policy.with_layers(reduced), all_reduce=usual)
        return replace(found, policy=policy)

    def more(self, running: Policy, model: Model) -> dict[str, str]:
        wraps = {}
        for wrap, layers in wraps_of(model).items():
            row = running.layer(layers[0])
            wraps[wrap] = row.compute, row.all_reduce or running.all_reduce
        return {"wraps": pprint.pformat(wraps, sort_dicts=False, width=96)}


def _widest(dtypes: list[str]) -> str:
    """Return the dtype that holds all of them; float32 for float16 beside bfloat16."""
    return dtypes[0] if len(set(dtypes)) == 1 else "float32"


def _scale(asked: LossScale) -> LossScale:
    if asked.kind != "dynamic":
        return replace(fixed_scale(asked), skip_on_overflow=True)
    return replace(asked, min_scale=None, max_scale=None, rule="torch.GradScaler")


_TARGET = _Wraps("fsdp2", TEMPLATE, ("float32", "float16", "bfloat16"), _scale, stores=False)

SUFFIX = ".py"
ABOUT = About(
    "a module to import: shard(module, mesh), loss_scaler()",
    "per wrap, a block or a layer outside: float32, float16, bfloat16; the same for what gradients "
    "are reduced in; loss scale",
    "torch 2.13 (run on a CPU with gloo, 2026-11)",
    "torch on a CPU in the tests",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
