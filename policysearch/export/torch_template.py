"""The text of an exported torch file; names after a dollar sign are filled in."""

from __future__ import annotations

TEMPLATE = '''\
"""A mixed-precision policy for a torch module, applied by layer name.

    module = apply_policy(module, device_type="cuda")
    scaler = make_grad_scaler("cuda")
    loss = loss_function(module(inputs), targets)  # float32: the module returns float32
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # an optimizer made after apply_policy
    scaler.update()
"""
# Written by policysearch from the policy $name with digest
# $digest
$notes# What this file does not do as the policy says:
$losses

import torch

# layer: (dtype it computes in, dtype of its result, dtype of its stored parameters or None)
LAYERS = $layers

# Layers without parameters: obeyed where the module has a submodule of this name.
FUNCTIONS = $functions


def apply_policy(module: torch.nn.Module, device_type: str = "cpu") -> torch.nn.Module:
    """Make `module` compute as the policy says, in place, and return it; it returns float32.

    Parameters, their names and `state_dict` stay as they are. Raises ValueError unless the
    submodules with parameters are the layers of the policy, and on a second application.
    """
    if hasattr(type(module), "policy_base"):
        raise ValueError("a policy has already been applied to this module")
    parts = module.named_modules()
    owners = {name for name, part in parts if name and list(part.parameters(False))}
    for given, valid, where in ((LAYERS, owners, "policy"), (owners, LAYERS, "module")):
        strangers = sorted(set(given) - set(valid))
        if strangers:
            raise ValueError(
                f"{where}: layers {', '.join(map(repr, strangers))} have no counterpart; "
                f"expected {', '.join(map(repr, sorted(valid)))}"
            )
    for name, (compute, result, stored) in LAYERS.items():
        part = module.get_submodule(name)
        if stored is not None:
            part.to(getattr(torch, stored))
        _wrap(part, getattr(torch, compute), getattr(torch, result), device_type)
    for name, dtype in FUNCTIONS.items():
        part = dict(module.named_modules()).get(name)
        if part is not None:
            _wrap(part, getattr(torch, dtype), getattr(torch, dtype), device_type, lists=False)
    _wrap(module, None, torch.float32, device_type)
    return module


def _cast(value, dtype):
    is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_number and dtype is not None else value


def _wrap(part, compute, result, device_type, lists=True):
    """Give `part` a subclass of its class, so that copies of the module behave alike."""
    base = type(part)
    low = lists and compute in (torch.float16, torch.bfloat16)

    def forward(self, *inputs, **options):
        # Autocast that is off does not cast its inputs up, so they are cast here.
        inputs = [_cast(value, compute) for value in inputs]
        # The cast cache is keyed by tensor: a weight used under two dtypes must not hit it.
        with torch.autocast(
            device_type, dtype=compute if low else None, enabled=low, cache_enabled=False
        ):
            return _cast(base.forward(self, *inputs, **options), result)

    part.__class__ = type(base.__name__, (base,), {"forward": forward, "policy_base": base})


class PolicyScaler(torch.amp.GradScaler):
    """The loss scale of the policy."""

$update

def make_grad_scaler(device_type: str = "cpu") -> torch.amp.GradScaler:
    """Return the loss scale; where the policy has none it passes everything through."""
    return PolicyScaler(
        device_type,
        init_scale=$init_scale,
        growth_factor=$growth_factor,
        backoff_factor=$backoff_factor,
        growth_interval=$growth_interval,
        enabled=$enabled,
    )
'''

UPDATES = {
    "plain": "",
    "fixed": '''\
    def update(self, new_scale=None):
        """Keep the scale as it is."""
        super().update($scale if new_scale is None else new_scale)

''',
    "schedule": '''\
    schedule = $schedule
    steps = 0

    def update(self, new_scale=None):
        """Take the scale of the next step from the schedule."""
        self.steps += 1
        begun = [scale for first, scale in self.schedule if first <= self.steps]
        scale = begun[-1] if begun else $init_scale
        super().update(scale if new_scale is None else new_scale)

''',
    "bounded": '''\
    def update(self, new_scale=None):
        """Move the scale as GradScaler does, but not below or above these bounds."""
        super().update(new_scale)
        if self.is_enabled():
            super().update(min(max(self.get_scale(), $lowest), $highest))

''',
}
