"""The loss scale of an exported torch file."""

from __future__ import annotations

import math

from policysearch.policy.loss_scale import LossScale
from policysearch.train.loss_scale import first_scale

SCALER = '''\


class PolicyScaler(torch.amp.GradScaler):
    """The loss scale of the policy, with the number of steps taken and skipped.

    All of it is in `state_dict`.
    """

    kind = $kind
    schedule = $schedule
    lowest, highest = $lowest, $highest
    skips = $skips
    steps = skipped = 0

    def step(self, optimizer, *args, **kwargs):
        """Take the step, unless a gradient is not finite and the policy skips such steps."""
        if self.skips or not self.is_enabled():
            return super().step(optimizer, *args, **kwargs)
        state = self._per_optimizer_states[id(optimizer)]
        stepped = torch.amp.grad_scaler.OptState.STEPPED
        if state["stage"] is stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if not state["found_inf_per_device"]:
            self.unscale_(optimizer)
        made = optimizer.step(*args, **kwargs)
        state["stage"] = stepped
        return made

    def update(self, new_scale=None):
        """Move the scale as the policy says, or set it to `new_scale`."""
        if not self.is_enabled():
            return
        states = self._per_optimizer_states.values()
        found = [float(x) for state in states for x in state["found_inf_per_device"].values()]
        self.steps += 1
        self.skipped += bool(self.skips and sum(found))
        if new_scale is not None or self.kind == "dynamic":
            super().update(new_scale)
        else:
            super().update(self.scale_at(self.steps))
        if new_scale is None and self.kind == "dynamic":
            scale = self.get_scale()
            bounded = min(max(scale, self.lowest), self.highest)
            if bounded != scale:
                super().update(bounded)

    def scale_at(self, step):
        """Return the scale of a step, counted from 0, that does not look at gradients."""
        begun = [scale for first, scale in self.schedule if first <= step]
        return begun[-1] if begun else $init_scale

    def state_dict(self):
        """Return what `load_state_dict` takes; empty where the policy scales nothing."""
        state = super().state_dict()
        own = ("schedule", "lowest", "highest", "steps", "skipped")
        return {**state, **{name: getattr(self, name) for name in own}} if state else state

    def load_state_dict(self, state):
        """Go on from a state; that of a plain GradScaler will do."""
        state = dict(state)
        for name in ("schedule", "lowest", "highest", "steps", "skipped"):
            setattr(self, name, state.pop(name, getattr(self, name)))
        super().load_state_dict(state)


def make_grad_scaler(device_type="cpu"):
    """Return the loss scale; where the policy has none it passes everything through."""
    return PolicyScaler(
        device_type,
        init_scale=$first_scale,
        growth_factor=$growth_factor,
        backoff_factor=$backoff_factor,
        growth_interval=$growth_interval,
        enabled=$enabled,
    )
'''


def scaler_values(scale: LossScale) -> dict[str, object]:
    """Return what the text of the scaler leaves open."""
    return {
        "kind": repr(scale.kind),
        "enabled": scale.kind != "none",
        "init_scale": scale.init_scale,
        "first_scale": first_scale(scale),
        "growth_factor": max(scale.growth_factor, math.nextafter(1.0, 2.0)),
        "backoff_factor": min(scale.backoff_factor, math.nextafter(1.0, 0.0)),
        "growth_interval": scale.growth_interval,
        "schedule": scale.schedule,
        "lowest": 0.0 if scale.min_scale is None else scale.min_scale,
        "highest": 2.0**127 if scale.max_scale is None else scale.max_scale,
        "skips": scale.kind == "dynamic" or scale.skip_on_overflow,
    }
