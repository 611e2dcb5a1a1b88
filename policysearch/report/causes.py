"""Why a step is not faster: what each single change to its policy would gain, priced anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from policysearch.cost.memory import Kind, live_by_kind
from policysearch.cost.parallel.shards import shard
from policysearch.cost.parallel.spread import spread_live
from policysearch.cost.price import StepPrice, step_price
from policysearch.formats import format_named
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.scaling import Scaling


@dataclass(frozen=True)
class Change:
    """One change to a policy: `speedup` and `memory_ratio` of the step after it over before."""

    what: str
    policy: Policy
    speedup: float
    memory_ratio: float


@dataclass(frozen=True)
class LayerMargins:
    """What a layer costs, and what it would with its formats one step wider and narrower.

    `share` is of the kernel seconds, `cast_share` what kernels that only convert take of them.
    None where there is no such step. `priced` are the layers of a net that is priced in the place
    of the one that is trained, for which this one stands.
    """

    layer: str
    format: str
    share: float
    cast_share: float
    wider: Change | None
    narrower: Change | None
    priced: tuple[str, ...] = ()


class Changes:
    """Prices single changes to one policy on the device and stack of an objective.

    Each as what obeys it, the target of a study, `runs` it; none that comes to nothing there.
    """

    def __init__(
        self,
        objective: Objective,
        policy: Policy,
        runs: Callable[[Policy], Policy] = lambda policy: policy,
    ) -> None:
        self._objective, self.policy, self._runs = objective, policy, runs
        self.graph: Graph = objective.step_graph(policy)
        self.price: StepPrice = objective.step_price(policy)

    def layers(self) -> tuple[LayerMargins, ...]:
        """Return the margins of the layers with products, in the order of the model."""
        gemms = (n for n in self.graph.nodes if n.op.kind == "gemm" and n.role != "update")
        with_products = dict[str, dict[str, None]]()
        for node in gemms:
            with_products.setdefault(self._trained_layer(node.layer), {})[node.layer] = None
        return tuple(
            self._margins(layer, tuple(with_products[layer]))
            for layer, _ in self.policy.layers
            if layer in with_products
        )

    def _trained_layer(self, layer: str) -> str:
        return self._objective.trained_layer(layer)

    def causes(self, layers: tuple[LayerMargins, ...]) -> tuple[Change, ...]:
        """Return the changes that make the step faster, the largest gain first.

        Those of `layers`, of op lists, loss scale and master weights; each alone.
        """
        steps = [change for row in layers for change in (row.wider, row.narrower) if change]
        changes = [*steps, *self._others()]
        return tuple(sorted((c for c in changes if c.speedup > 1.0), key=lambda c: -c.speedup))

    def live(self) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
        """Return for each node that runs where it does, and the bytes live then, by kind."""
        parallel = self.policy.parallel
        if parallel.devices == 1:
            return live_by_kind(self.graph)
        part = shard(self.graph, parallel.tensor)[0]
        return spread_live(part, parallel, self.policy.all_reduce, self.policy.reductions)

    @property
    def without_launches(self) -> float:
        """Return the speedup if the host launched its kernels in no time."""
        free = dataclasses.replace(self._objective.stack, launch_seconds=0.0)
        after = step_price(self.graph, self._objective.device, free, self.policy)
        return self.price.time.step_seconds / after.time.step_seconds

    def _margins(self, layer: str, priced: tuple[str, ...]) -> LayerMargins:
        kernels = [k for k in self.price.time.kernels if self._trained_layer(k.layer) == layer]
        total, format = self.price.time.kernel_seconds, self.policy.layer(layer).compute
        return LayerMargins(
            layer,
            format,
            sum(kernel.seconds for kernel in kernels) / total,
            sum(kernel.seconds for kernel in kernels if kernel.is_cast) / total,
            self._in_format(layer, wider(format)),
            self._in_format(layer, narrower(format)),
            priced if self._objective.net is not None else (),
        )

    def _in_format(self, layer: str, format: str | None) -> Change | None:
        if format is None:
            return None
        old = self.policy.layer(layer)
        new = uniform_layer(format, param=old.param, accumulator=old.accumulator)
        changed = self.policy.with_layers({layer: new})
        if format_named(format).bits < 16 and not self._is_narrow:
            changed = dataclasses.replace(changed, scaling=Scaling("current"))
        changed = self._runs(changed)
        if changed.layer(layer).compute != format:
            return None
        return self._change(f"{layer} in {format}", changed)

    @property
    def _is_narrow(self) -> bool:
        """Whether it has layers below 16 bits already, and so says itself how they are scaled."""
        return any(format_named(layer.compute).bits < 16 for _, layer in self.policy.layers)

    def _others(self) -> Iterator[Change]:
        layers = dict(self.policy.layers)  # the loss is in none: it stays float32
        used = {
            node.source for node in self.graph.nodes if self._trained_layer(node.layer) in layers
        }
        for op in sorted(used.intersection(self.policy.fp32_ops)):
            lists = {
                "fp32_ops": tuple(name for name in self.policy.fp32_ops if name != op),
                "low_precision_ops": (*self.policy.low_precision_ops, op),
            }
            yield self._change(f"{op} in the format of its layer", self._with(**lists))
        if self.policy.loss_scale.kind != "none":
            yield self._change("no loss scale", self._with(loss_scale=LossScale()))
        if self.policy.parallel.groups > 1 and self.policy.all_reduce == "float32":
            yield self._change("gradients reduced in bfloat16", self._with(all_reduce="bfloat16"))
        if self.policy.master_weights:
            yield self._change("no master weights", self._with(master_weights=False))

    def _with(self, **fields: object) -> Policy:
        return dataclasses.replace(self.policy, **fields)  # type: ignore[arg-type]

    def _change(self, what: str, policy: Policy) -> Change:
        policy = self._runs(policy)
        after = self._objective.step_price(policy)
        return Change(
            what,
            policy,
            self.price.time.step_seconds / after.time.step_seconds,
            after.memory.peak_bytes / self.price.memory.peak_bytes,
        )


def wider(format: str) -> str | None:
    """Return the format one step wider: 16 bits for narrower ones, then float32, then none."""
    bits = format_named(format).bits
    return None if format == "float32" else "float32" if bits >= 16 else "bfloat16"


def narrower(format: str) -> str | None:
    """Return the format one step narrower: 16 bits, then float8_e4m3fn, then none."""
    if format_named(format).bits < 16:
        return None
    return "bfloat16" if format in ("float32", "tfloat32") else "float8_e4m3fn"
