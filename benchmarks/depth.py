"""What a deep net costs before anything is trained: CPU seconds of each part as the net grows.

    python -m benchmarks.depth

Traced is the float32 step, which is priced once for all policies; the policy pass puts every cast
into it; compiled is the step that trains; priced is the policy's step, then compared. One more
policy costs the pass and its price. The power is the slope of log(seconds) over log(layers). Exits
with 1 where 200 layers take more than a second, where the whole grows with a power above 1.2, and
where one more policy of the 200-layer MLP takes more than 60 ms, or of 400 layers 2.3 times that.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.timing import machine, parser, pin_one_thread, show, write_csv
from policysearch.cost.price import compare, step_price
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray
from policysearch.nn.layers import Activation, Linear
from policysearch.nn.model import Fed, Input, Model, ParameterSpec, Traced
from policysearch.nn.models import mlp, transformer
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import add
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

LAYERS = (25, 50, 100, 200, 400)
MOST_SECONDS = 1.0
"""Of 200 layers."""
MOST_POWER = 1.2
WIDTH = 32
BATCH_SIZE = 32
CLASSES = 10
PARTS = ("traced", "float32 priced", "policy pass", "compiled", "priced")
MOST_POLICY_SECONDS = 0.060
"""Of the pass and the price of one more policy of the MLP of 200 layers, activations counted."""
MOST_POLICY_RATIO = 2.3
"""What 400 layers of it may take over 200."""
COLUMNS = ("net", "policy", "stack", "layers", "nodes", *(f"{part}_seconds" for part in PARTS))


@dataclass(frozen=True)
class Residual(Model):
    """Blocks y = x + fc2(relu(fc1(x))) in a row, then a head: a graph, as imported nets are."""

    blocks: int
    name: str = "residual"
    inputs: tuple[Input, ...] = (Input("images", (WIDTH,)),)

    def _fully_connected(self) -> tuple[Linear, ...]:
        inner = [Linear(f"{i}.fc{j}", WIDTH, WIDTH) for i in range(self.blocks) for j in (1, 2)]
        return (*inner, Linear("head", WIDTH, CLASSES))

    @property
    def layer_names(self) -> tuple[str, ...]:
        joined = (f"{i}.{part}" for i in range(self.blocks) for part in ("relu", "add"))
        return (*(layer.name for layer in self._fully_connected()), *joined)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Return the weights and biases in layer order."""
        layers = self._fully_connected()
        return tuple(spec for layer in layers for spec in layer.parameters((WIDTH,)))

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return zeros: the net is not trained."""
        return {spec.name: np.zeros(spec.shape, np.float32) for spec in self.parameters()}

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass; its output are the logits [batch, CLASSES]."""
        nodes, x, (*inner, head) = Fed(fed, training), fed["images"], self._fully_connected()
        for i, (first, second) in enumerate(zip(inner[::2], inner[1::2], strict=True)):
            y = Activation(f"{i}.relu", "relu").trace(b, first.trace(b, x, nodes), nodes)
            y = second.trace(b, y, nodes)
            with b.scope(layer=f"{i}.add", role="fprop"):
                x = b.emit(add, y, x)
        return Traced(head.trace(b, x, nodes))


NETS: Mapping[str, Callable[[int], Model]] = {
    "mlp": lambda layers: mlp((WIDTH,) * (layers // 2 + 1) + (CLASSES,)),
    "residual": lambda layers: Residual(layers // 4),
    "transformer": lambda layers: transformer((8, 16), CLASSES, WIDTH, (64,) * (layers // 8)),
}
"""By name: the net of about so many layers, activations and sums counted."""


def cpu_seconds(model: Model, policy: str, stack: str) -> tuple[int, list[float]]:
    """Return the nodes of the step under `policy`, and the CPU seconds of each of PARTS."""
    given = preset(policy, model.layer_names)
    gc.collect()
    marks = [time.process_time()]
    traced = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), BATCH_SIZE)
    marks.append(time.process_time())
    float32 = step_price(traced, "H100-SXM5", stack)
    marks.append(time.process_time())
    graph = apply_policy(traced, given)
    marks.append(time.process_time())
    compile_graph(graph.wanting("loss", "finite"))
    marks.append(time.process_time())
    compare(graph, step_price(graph, "H100-SXM5", stack), float32)
    marks.append(time.process_time())
    return len(graph.nodes), list(np.diff(marks))


def policy_seconds(model: Model, policy: str, stack: str, rounds: int) -> float:
    """Return the least CPU seconds of the pass and the price of one more policy."""
    given = preset(policy, model.layer_names)
    traced = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), BATCH_SIZE)
    float32 = step_price(traced, "H100-SXM5", stack)
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        graph = apply_policy(traced, given)
        compare(graph, step_price(graph, "H100-SXM5", stack), float32)
        taken.append(time.process_time() - start)
    return min(taken)


def one_policy(seconds: Mapping[int, float]) -> tuple[str, bool]:
    """Return what one more policy costs at 200 and at 400 layers, and whether it is little."""
    ratio = seconds[400] / seconds[200]
    said = f"{seconds[200] * 1e3:.1f} ms at 200 layers, {ratio:.2f} times that at 400"
    return said, seconds[200] <= MOST_POLICY_SECONDS and ratio <= MOST_POLICY_RATIO


def main() -> int:
    """Print the table; return the exit code."""
    options = parser(__doc__)
    options.add_argument("--policy", nargs="+", default=["float16", "te.delayed"])
    options.add_argument("--stack", default="torch.compile")
    options.set_defaults(rounds=5)
    given = options.parse_args()
    pin_one_thread()
    rows, lines, notes, kept = [], [], [], True
    for net, build in NETS.items():
        for policy in given.policy:
            whole: list[float] = []
            one: dict[int, float] = {}
            for layers in LAYERS:
                turns = [
                    cpu_seconds(build(layers), policy, given.stack) for _ in range(given.rounds)
                ]
                seconds = [min(taken) for taken in zip(*(part for _, part in turns), strict=True)]
                whole.append(sum(seconds))
                one[layers] = policy_seconds(build(layers), policy, given.stack, given.rounds)
                lines.append([net, policy, given.stack, layers, turns[0][0], *seconds])
                rows.append([f"{net}, {policy}, {layers}", turns[0][0], *seconds, whole[-1]])
                kept &= layers != 200 or whole[-1] <= MOST_SECONDS
            power = np.polyfit(np.log(LAYERS), np.log(whole), 1)[0]
            kept &= bool(power <= MOST_POWER)
            rows.append([f"{net}, {policy}: power", "", *[""] * len(PARTS), float(power)])
            said, holds = one_policy(one)
            kept &= holds or net != "mlp"
            notes.append(f"{net}, {policy}: {said}")
    columns = ("net, policy, layers", "nodes", *PARTS, "whole")
    show(f"CPU seconds before training, {given.stack}", columns, rows)
    print("\none more policy:", *notes, sep="\n  ")
    print(f"\n200 layers: at most {MOST_SECONDS} s; power: at most {MOST_POWER}; ", end="")
    print(f"{'kept' if kept else 'broken'}\n{machine()}")
    write_csv(given.out / "depth.csv", COLUMNS, lines)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
