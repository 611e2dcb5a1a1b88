"""Published networks as step graphs, priced by the function that prices policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from policysearch.cost.devices import Device
from policysearch.cost.price import StepPrice, step_price
from policysearch.cost.roofline import Work
from policysearch.cost.stacks import Stack
from policysearch.cost.time import parts_of
from policysearch.graph import Graph
from policysearch.objective.published.models import (
    float32_step,
    model_at,
    update_apart,
    update_ops,
    update_share,
)
from policysearch.objective.published.networks import Network
from policysearch.objective.published.policies import policy_of
from policysearch.objective.published.stacks import Precision
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy

FUSED_ATTENTION_LIBRARY = 12
"""Generation of the libraries with which frameworks have attention in one kernel: torch 2."""


@dataclass(frozen=True)
class Run:
    """One run of a published row: a recorded network at a batch, in a precision, on a stack."""

    network: Network
    length: int
    batch: int
    precision: Precision
    device: Device
    stack: Stack
    devices: int = 1

    @property
    def recorded_length(self) -> int:
        """The length it is recorded at, its first where none is asked for."""
        lengths = self.network.lengths
        return self.length if lengths != (0,) and self.length else lengths[0]

    @property
    def fused(self) -> bool:
        """Whether its calls of torch's attention are one kernel: those of torch 2 and newer."""
        called = not self.network.recipe.written_attention
        return called and self.stack.library >= FUSED_ATTENTION_LIBRARY

    @property
    def step(self) -> Graph:
        """The float32 step of the network."""
        return float32_step(self.network, self.recorded_length, self.batch, self.fused)

    @property
    def policy(self) -> Policy:
        """The policy that is its precision on its stack, spread over `devices`."""
        layers = model_at(self.network, self.recorded_length, self.fused).layer_names
        return policy_of(self.precision, self.stack, self.step, layers, self.devices)

    @property
    def graph(self) -> Graph:
        """The step that runs."""
        return _under(self.policy, self.network, self.recorded_length, self.batch, self.fused)

    @property
    def update_share(self) -> float:
        """The share of the update that a micro-batch costs."""
        return update_share(self.network) if self.precision.update else 0.0


@lru_cache(maxsize=32)
def _under(policy: Policy, network: Network, length: int, batch: int, fused: bool) -> Graph:
    """Return the step of a network under a policy: the same whatever device it runs on."""
    return apply_policy(float32_step(network, length, batch, fused), policy)


@lru_cache(maxsize=4096)
def recorded_price(run: Run) -> StepPrice:
    """Return the modeled step of a recorded network as one of a user's policies is priced."""
    return step_price(run.graph, run.device, run.stack, run.policy)


@lru_cache(maxsize=4096)
def recorded_works(run: Run) -> tuple[Work, ...]:
    """Return what one micro-batch asks of the device, its share of the update included.

    Works that differ in their count alone are one; the last is what all examples take of the
    host besides, where they do.
    """
    counts: dict[Work, float] = {}
    own = () if run.stack.fused_optimizer else update_ops(run.step)
    shares = [
        (part.work, run.update_share if part.kernel.lead.role == "update" else 1.0)
        for part in parts_of(run.graph, run.device, run.stack)
        if part.op not in own
    ]
    if own:
        together = run.stack.library >= FUSED_ATTENTION_LIBRARY
        apart = update_apart(run.network, run.step, together)
        shares += [(work, run.update_share) for work in apart]
    for work, share in shares:
        if share:
            counts[work] = counts.get(work, 0.0) + share
    works = [replace(work, count=count) for work, count in counts.items()]
    if besides := run.network.host_seconds * run.batch:
        works.append(Work(0, launches=0, host_seconds=besides))
    return tuple(works)
