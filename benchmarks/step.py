"""Times whole training steps: ours in every mode, plain numpy, torch, and with --peers the rest.

    python -m benchmarks.step --peers

All take the same batch, which is in place before the clock starts, and do forward, backward and
the momentum update, in interleaved turns of one process on one thread. Nobody scales the loss,
except in the row that says so (unscaling and the finite check are its cost).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nets import (
    ALL_NETS,
    BATCHES,
    EVERYWHERE,
    NETS,
    STUDIES,
    TITLES,
    batch_of,
    our_step,
    policy_of,
)
from benchmarks.peers import NUMPY_PEERS, Round, missing, rounding
from benchmarks.plain import plain_step
from benchmarks.timing import (
    Call,
    Timing,
    interleaved,
    machine,
    parser,
    pin_one_thread,
    show,
    write_csv,
)
from policysearch.formats import format_named
from policysearch.nn.chain import Chain
from policysearch.products.product import compiled_available as exact_available
from policysearch.rounding.rounder import Fast, fast_ways

EMULATED = ("bfloat16", "float16", "float8")
RECIPES = ("te.current", "te.delayed", "te.mxfp8", "te.nvfp4")
EXACT = "tensor_core.h100"
OURS = ("ours, numpy", "ours, C")
PEERS = ("qtorch", "pychop", "pychop torch", "gfloat")
COLUMNS = ("model", "batch", "code", "format", "minimum_ms", "median_ms", "turns", "calls")


@dataclass(frozen=True)
class Candidate:
    """One way of taking the step: `code` says whose, `format` the preset it emulates."""

    code: str
    format: str
    call: Call

    @property
    def name(self) -> str:
        return f"{self.code}, {self.format}"


def ours(model: Chain, batch: int) -> list[Candidate]:
    """Return our steps in numpy and, where it is built, with the extension."""
    made = []
    ways: tuple[Fast, ...] = ("numpy", "c")
    for code, fast in zip(OURS, ways, strict=True):
        if fast not in fast_ways():
            continue
        for name in ("float32", *EMULATED, EVERYWHERE, *RECIPES):
            made.append(Candidate(code, name, our_step(model, name, batch, fast=fast)))
        scaled = our_step(model, "float16", batch, fast=fast, loss_scale=True)
        made.append(Candidate(code, "float16, loss scale", scaled))
    for name in ("float16", "float8"):
        if exact_available() and "c" in fast_ways():
            step = our_step(model, name, batch, fast="c", accumulator=EXACT)
            made.append(Candidate("ours, C, exact H100", name, step))
    return made


def others(model: Chain, batch: int, peers: Sequence[str]) -> list[Candidate]:
    """Return plain numpy, torch and the emulators named in `peers`, as far as installed."""
    images, targets = batch_of(model, batch)
    made = []
    if model.name in ("mlp", "lenet5"):
        made.append(Candidate("plain numpy", "float32", plain_step(model, images, targets)))
    if missing("torch"):
        return made
    from benchmarks.torch_step import Places, on_numpy, torch_step

    made.append(Candidate("torch", "float32", torch_step(model, images, targets)))
    fused = torch_step(model, images, targets, fused=True)
    made.append(Candidate("torch, fused SGD", "float32", fused))
    if model.name == "resnet":
        last = torch_step(model, images, targets, fused=True, channels_last=True)
        made.append(Candidate("torch, fused SGD, channels_last", "float32", last))
    if model.name in ("transformer", "gpt"):
        attention = torch_step(model, images, targets, fused=True, sdpa=True)
        made.append(Candidate("torch, fused SGD, sdpa", "float32", attention))
    for name in ("bfloat16", "float16"):
        step = torch_step(model, images, targets, autocast=name)
        made.append(Candidate("torch autocast", name, step))
    if model.name in ("resnet", "gpt"):
        return made
    for peer in ("torch", *peers):

        def of_format(name: str, peer: str = peer) -> Round | None:
            found = rounding(peer, format_named(name))
            return on_numpy(found) if found and peer in NUMPY_PEERS else found

        for name in EMULATED:
            layer = policy_of(model, name).layers[0][1]
            before_pools = model.name != "transformer" and layer.compute == layer.output
            at = Places(layer, functools.cache(of_format), before_pools)
            step = torch_step(model, images, targets, at)
            made.append(Candidate("torch .to()" if peer == "torch" else peer, name, step))
    return made


def ratio(found: dict[str, Timing], above: str, below: str) -> float | None:
    """Return how many times longer `above` takes than `below`, by their minima."""
    if above not in found or below not in found:
        return None
    return found[above].minimum_seconds / found[below].minimum_seconds


def rows_of(candidates: Sequence[Candidate], found: dict[str, Timing]) -> list[list[object]]:
    """Return table rows: times, the ratio to the same code's float32, and ours against it."""
    rows: list[list[object]] = []
    for candidate in candidates:
        timing, name = found[candidate.name], candidate.name
        own = next((code for code in OURS if candidate.code.startswith(code)), "")
        against = [f"{code}, {candidate.format}" for code in OURS]
        rows.append(
            [
                name,
                timing.minimum_seconds * 1e3,
                timing.median_seconds * 1e3,
                ratio(found, name, f"{own}, float32"),
                ratio(found, name, f"{OURS[0]}, float32"),
                *(None if own else ratio(found, name, other) for other in against),
            ]
        )
    return rows


def plot(path: Path, results: dict[tuple[str, int], dict[str, Timing]]) -> None:
    """Draw one panel per net and batch: times over our numpy float32 step, logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    nets = list(dict.fromkeys(net for net, _ in results))
    batches = list(dict.fromkeys(batch for _, batch in results))
    most = max(len(found) for found in results.values())
    size = (6.0 * len(batches), (0.19 * most + 0.9) * len(nets))
    figure, axes = pyplot.subplots(len(nets), len(batches), squeeze=False, figsize=size)
    for (net, batch), found in results.items():
        axis = axes[nets.index(net)][batches.index(batch)]
        names = list(found)[::-1]
        colours = ["tab:blue" if name.startswith("ours") else "tab:gray" for name in names]
        own = found[f"{OURS[0]}, float32"].minimum_seconds
        axis.scatter([found[name].minimum_seconds / own for name in names], names, c=colours, s=18)
        axis.set_xscale("log")
        axis.set_xlim(0.25, 200)
        axis.axvline(1, color="tab:blue", linewidth=0.8)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{net}, batch {batch}", fontsize=9)
        axis.set_xlabel("CPU time / our float32 step in numpy", fontsize=8)
        axis.tick_params(labelsize=6)
        axis.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    print(f"written: {path}")


def run(
    net: str, batch: int, build: Callable[[Chain], list[Candidate]], rounds: int, budget: float
) -> tuple[list[Candidate], dict[str, Timing]]:
    """Time all candidates of one net and batch; print their table."""
    candidates = build(ALL_NETS[net]())
    calls = {candidate.name: candidate.call for candidate in candidates}
    found = interleaved(calls, rounds=rounds, budget_seconds=budget)
    columns = (
        *("step", "min ms", "median ms", "/ own float32", "/ our numpy float32"),
        *(
            "/ our numpy, same format",
            "/ our C, same format",
        ),
    )
    show(f"{TITLES[net]}, batch {batch}", columns, rows_of(candidates, found))
    return candidates, found


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--peers", action="store_true", help="also qtorch, pychop and gfloat")
    options.add_argument("--nets", nargs="+", choices=ALL_NETS, default=list(NETS))
    options.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    options.add_argument("--budget", type=float, default=4.0, help="seconds per candidate")
    given = options.parse_args()
    peers = [peer for peer in PEERS if given.peers and not missing(peer)]
    for peer in ("torch", *(PEERS if given.peers else ())):
        if missing(peer):
            print(f"left out: {peer} (not installed: {missing(peer)})")
    pin_one_thread()
    results, lines = {}, []
    for net in given.nets:
        for batch in given.batches:

            def build(model: Chain, batch: int = batch, net: str = net) -> list[Candidate]:
                made = ours(model, batch)
                made += [] if net in STUDIES else others(model, batch, peers)
                pin_one_thread()
                return made

            candidates, found = run(net, batch, build, given.rounds, given.budget)
            results[net, batch] = found
            for one in candidates:
                t = found[one.name]
                ms = t.minimum_seconds * 1e3, t.median_seconds * 1e3
                lines.append([net, batch, one.code, one.format, *ms, t.turns, t.calls])
    print(f"\n{machine()}")
    write_csv(given.out / "step.csv", COLUMNS, lines)
    plot(given.out / "step.png", results)


if __name__ == "__main__":
    main()
