"""Failures drawn anew: one layer of a healthy net broken in one of seven ways, on other nets.

    python -m benchmarks.failures.drawn [--seed N] [--planted N] [--healthy N]

Needs torch. The diagnosis was tuned on no net, recipe or policy of this file. Prints right or wrong
by case: the layer and direction of what was broken, "none" of healthy policies, and "undecided"
where jitter moves float32 as far as the policy does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.failures.__main__ import line
from benchmarks.failures.zoo import DEVICE, STACK
from policysearch.data.datasets import Dataset
from policysearch.diagnose.diagnosis import Diagnoser, Diagnosis
from policysearch.importers.torch_export import from_torch
from policysearch.objective.objective import JITTER, Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import PRESETS, preset
from policysearch.train.tasks import Task

TRIES = 4
"""So many draws for each failure that is wanted: some broken layers do no harm."""


class Images(nn.Module):
    """Convolutions with batch norms on images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2)
        self.norm, self.bn = nn.BatchNorm2d(8), nn.BatchNorm2d(12)
        self.head, self.out = nn.Linear(12 * 9, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norm(self.first(x)))
        x = nn.functional.gelu(self.bn(self.second(x)))
        return self.out(torch.tanh(self.head(x.flatten(1))))


class Attending(nn.Module):
    """A block of attention and one of a feed-forward net, norms before them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(8, 16), nn.Linear(16, 4)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.mixed, self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 48), nn.Linear(48, 16)
        self.before, self.between, self.last = (nn.LayerNorm(16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.reshape(-1, 8, 8))
        n = self.before(x)
        x = x + self.mixed(
            nn.functional.scaled_dot_product_attention(self.query(n), self.key(n), self.value(n))
        )
        x = x + self.down(nn.functional.silu(self.up(self.between(x))))
        return self.out(self.last(x).mean(1))


class Recurrent(nn.Module):
    """A gated recurrence written out over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.new, self.read = nn.Linear(40, 32), nn.Linear(40, 32), nn.Linear(32, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8, 8)
        hidden = rows.new_zeros(rows.shape[0], 32)
        for place in range(4):
            seen = torch.cat([rows[:, 2 * place], hidden], 1)
            z = torch.sigmoid(self.gate(seen))
            hidden = z * hidden + (1 - z) * torch.tanh(self.new(seen))
        return self.out(nn.functional.elu(self.read(hidden)))


class Mixing(nn.Module):
    """Residual gated blocks with RMS norms."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.out = nn.Linear(64, 24), nn.Linear(24, 4)
        self.gates = nn.ModuleList(nn.Linear(24, 32) for _ in range(2))
        self.ups = nn.ModuleList(nn.Linear(24, 32) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(32, 24) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(24) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inlet(x.flatten(1))
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            n = norm(x)
            x = x + down(nn.functional.silu(gate(n)) * up(n))
        return self.out(x)


class Loud(nn.Module):
    """A layer within which values are `factor` times as large as outside."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.factor) / self.factor


class Heavy(nn.Module):
    """A layer whose weights are `factor` times as large as they should be, and its results less."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.factor


class Rooted(nn.Module):
    """A layer behind which values are divided by a size whose epsilon float16 does not have."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        size = torch.sqrt(torch.relu(y) ** 2 + 1e-9)
        return y + 0.01 * torch.relu(y) / size


NETS: dict[str, Callable[[], nn.Module]] = {
    "images": Images,
    "attending": Attending,
    "recurrent": Recurrent,
    "mixing": Mixing,
}


@dataclass(frozen=True)
class Way:
    """A way to break a layer: the kinds of cause and roles that are right, and what it changes.

    `net` wraps the layer in torch, `formats` changes those of its policy; `everything` is the
    format of all other layers, "" where any will do; `scale` the loss scale.
    """

    name: str
    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    net: Callable[[nn.Module], nn.Module] | None = None
    formats: Callable[[LayerPolicy], LayerPolicy] = lambda old: old
    everything: str = ""
    scale: float = 1.0
    master_weights: bool = True


def _narrow_gradients(old: LayerPolicy) -> LayerPolicy:
    return replace(old, grad="float6_e3m2fn", wgrad="float6_e3m2fn")


WAYS = (
    Way(
        "loud", ("overflow",), ("fprop",), lambda layer: Loud(layer, 30000.0), everything="float16"
    ),
    Way(
        "heavy",
        ("overflow",),
        ("fprop",),
        lambda layer: Heavy(layer, 2.0**17),
        everything="float16",
    ),
    Way("rooted", ("born", "underflow"), ("fprop", "dgrad"), Rooted, everything="float16"),
    Way("gradients vanish", ("underflow",), ("dgrad", "wgrad"), formats=_narrow_gradients),
    Way(
        "weight gradients vanish",
        ("underflow",),
        ("wgrad",),
        formats=lambda old: replace(old, wgrad="float4_e2m1fn"),
    ),
    Way(
        "gradients saturate",
        ("overflow", "loss scale"),
        ("dgrad", "wgrad"),
        formats=_narrow_gradients,
        scale=2.0**14,
    ),
    Way(
        "coarse",
        ("rounding", "underflow", "overflow"),
        ("fprop",),
        formats=lambda old: replace(old, compute="float4_e2m1fn", output="float4_e2m1fn"),
    ),
    Way(
        "updates are lost",
        ("swamped updates",),
        ("update",),
        formats=lambda old: replace(old, param="float8_e5m2"),
        master_weights=False,
    ),
)


@dataclass(frozen=True)
class Planted:
    """A net with a broken layer, the policy under which it fails, and what is right of it."""

    name: str
    objective: Objective
    policy: Policy
    layer: str
    way: Way


def digits(rng: np.random.Generator) -> Dataset:
    """Return images whose class lies in two of their means, through a curve, with noise."""
    x = rng.standard_normal((768, 1, 8, 8)).astype(np.float32)
    means = np.stack([x[:, 0, :4].mean((1, 2)), x[:, 0, 4:].mean((1, 2))], 1)
    label = 2 * (means[:, 0] > 0) + (means[:, 1] > 0)
    x[:, 0, 0, :4] += label[:, None].astype(np.float32) - 1.5
    return Dataset("drawn", (x,), label.astype(np.int64), 640, 128, 4)


def recipe(rng: np.random.Generator, data: Dataset, net: nn.Module) -> Task:
    """Return a task of such a net with a drawn recipe in which it learns."""
    optimizer, rate = (("adam", 4e-3), ("momentum", 0.02))[rng.integers(2)]
    model = from_torch(net, (torch.zeros(4, 1, 8, 8),))
    return Task(
        model=model,
        data=data,
        optimizer=optimizer,
        learning_rate=rate,
        batch_size=int(rng.choice([24, 48])),
        steps=int(rng.choice([50, 80])),
        tail_steps=12,
    )


def plain(names: tuple[str, ...], format: str, scale: float = 1.0) -> Policy:
    """Return a policy with every op in the low list, so that each layer has its own format."""
    low = preset("apex.O3", names)
    layers = tuple((name, uniform_layer(format)) for name in names)
    return replace(
        low,
        name=f"drawn {format}",
        layers=layers,
        master_weights=True,
        optimizer_state="float32",
        optimizer_order="fused",
        loss_scale=LossScale("fixed", scale) if scale != 1.0 else LossScale(),
    )


def net_of(rng: np.random.Generator, name: str) -> nn.Module:
    """Return a net with drawn initial values."""
    torch.manual_seed(int(rng.integers(2**31)))
    return NETS[name]()


def planted(seed: int) -> Iterator[Planted]:
    """Yield nets with one layer broken, one after the other."""
    rng = np.random.default_rng(seed)
    while True:
        name, way = str(rng.choice(list(NETS))), WAYS[rng.integers(len(WAYS))]
        net = net_of(rng, name)
        # the embedding and the classifier are layers like others
        layers = [n for n, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        layer = str(rng.choice(layers))
        if way.net is not None:
            parent, _, own = layer.rpartition(".")
            setattr(net.get_submodule(parent), own, way.net(net.get_submodule(layer)))
        objective = Objective(recipe(rng, digits(rng), net), DEVICE, STACK)
        format = way.everything or str(rng.choice(["float32", "bfloat16", "float16"]))
        policy = plain(objective.model.layer_names, format, way.scale)
        inner = f"{layer}.layer" if way.net is not None else layer
        changed = policy.with_layers({inner: way.formats(policy.layer(inner))})
        changed = replace(changed, master_weights=way.master_weights)
        yield Planted(f"{way.name} in {name} {layer}", objective, changed, layer, way)


def is_right(case: Planted, found: Diagnosis) -> tuple[bool, bool]:
    """Return whether a diagnosis has the kind right, and the layer and direction."""
    cause = found.cause
    inside = cause.layer == case.layer or cause.layer == f"{case.layer}.layer"
    return cause.kind in case.way.kinds, inside and cause.role in case.way.roles


def plants(seed: int, count: int) -> None:
    """Diagnose drawn failures until `count` of them failed."""
    kinds = places = repaired = failed = drawn = 0
    for case in planted(seed):
        drawn += 1
        found = Diagnoser(case.objective, (0,)).diagnose(case.policy)
        if found.verdict not in ("none", "undecided"):
            right = is_right(case, found)
            print(line(case.name, found, right), flush=True)
            failed, kinds, places = failed + 1, kinds + right[0], places + right[1]
            repaired += found.verdict == "repaired"
        else:
            print(f"{case.name:40} {found.verdict} {found.gap:.2g} {found.why}", flush=True)
        if failed == count or drawn == TRIES * count:
            break
    print(
        f"planted (seed {seed}): kind {kinds}, layer and direction {places}, repaired {repaired}, "
        f"of {failed} failing, {drawn} drawn"
    )


def healthy(seed: int) -> Iterator[tuple[str, Objective, Policy]]:
    """Yield policies that the field calls healthy, on drawn nets."""
    rng = np.random.default_rng(seed)
    sound = [n for n in PRESETS if n in SOUND]
    while True:
        name = str(rng.choice(list(NETS)))
        objective = Objective(recipe(rng, digits(rng), net_of(rng, name)), DEVICE, STACK)
        names = objective.model.layer_names
        if rng.random() < 0.5:
            given = str(rng.choice(sound))
            yield f"{given} of {name}", objective, preset(given, names)
            continue
        mixed = plain(names, "float32", 2.0**8)
        formats = rng.choice(["float16", "bfloat16", "float32"], len(names))
        layers = {n: uniform_layer(str(f)) for n, f in zip(names, formats, strict=True)}
        yield f"a mix of {name}", objective, mixed.with_layers(layers)


SOUND = (
    *("float32", "torch.tf32", "bfloat16", "float16", "apex.O1", "apex.O2", "mindspore.O1"),
    *("torch.autocast.float16", "torch.autocast.bfloat16", "te.current", "te.mxfp8"),
    *("torchao.rowwise", "mindspore.O2.fixed128"),
)
"""Presets that the field trains with, and whose loss scale fits within 50 steps."""


def sound(seed: int, count: int) -> None:
    """Count how many healthy policies are left alone."""
    none = 0
    for (name, objective, policy), _ in zip(healthy(seed), range(count), strict=False):
        found = Diagnoser(objective, (0,)).diagnose(policy)
        none += found.verdict == "none"
        if found.verdict != "none":
            print(line(name, found), f"{found.gap:.2g} of {found.matters:.2g}", flush=True)
    print(f"healthy (seed {seed}): none on {none} of {count}")


def chaotic(seed: int, count: int = 5) -> None:
    """Count how many recipes in which chance decides are left undecided.

    That is where float32 learns, and ends elsewhere when its initial values move by a millionth.
    """
    rng = np.random.default_rng(seed)
    undecided = found = 0
    while found < count:
        name, rate = str(rng.choice(list(NETS))), float(10 ** rng.uniform(-1.0, 0.5))
        task = recipe(rng, digits(rng), net_of(rng, name))
        task = replace(task, optimizer="momentum", learning_rate=rate, steps=100)
        objective = Objective(task, DEVICE, STACK)
        runs = [objective.measure(objective.float32, 0, j) for j in (0.0, JITTER, -JITTER)]
        ends = [run.tail_loss for run in runs if run.tail_loss is not None]
        first = runs[0].first_loss or 0.0
        if len(ends) < 3 or ends[0] > first or max(ends) - min(ends) < 0.2 * first:
            continue
        found += 1
        policy = plain(objective.model.layer_names, str(rng.choice(["bfloat16", "float16"])))
        said = Diagnoser(objective, (0,)).diagnose(policy)
        undecided += said.verdict == "undecided"
        place = f"{name} at rate {rate:.2g}, float32 {min(ends):.2g} to {max(ends):.2g}"
        print(f"{place}: {said.verdict}, gap {said.gap:.2g}, noise {said.noise:.2g}", flush=True)
    print(f"chaotic (seed {seed}): undecided on {undecided} of {count}")


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planted", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=20)
    options = parser.parse_args()
    plants(options.seed, options.planted)
    sound(options.seed, options.healthy)
    chaotic(options.seed)


if __name__ == "__main__":
    main()
