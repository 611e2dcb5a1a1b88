"""A net of its own for every op of torch that has an import rule, trained in torch and here.

`python -m tests.trained_ops [NET ...] [--shard 0/2]` prints a row for each net and policy: whether
`verify` holds over 50 steps, else whether torch's own noise does, and the gaps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policysearch.nn.model import Model
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_forward
from policysearch.values import InputError
from policysearch.verify import torch_training
from policysearch.verify import verdict as verdicts
from policysearch.verify.verdict import Verdict, trained_in_torch, verify
from tests.nets_of_ops import BATCH, COMPLEX, NETS, STEPS, Moved, task_of

POLICIES: Mapping[str, tuple[str, ...]] = {
    "float32": ("float32",),
    "float16": ("torch.autocast.float16", "float16"),
    "bfloat16": ("torch.autocast.bfloat16", "bfloat16"),
}
"""By format: presets. One named as its format is of a whole net in it, all ops but WIDE."""

WIDE = (
    *LOSS_OPS,
    *("batch_mean", "batch_variance", "moving_average", "layer_statistics", "complex_product"),
    *("cholesky", "solve", "matrix_exp", "logdet", "det_sign", "fft", "rfft", "irfft"),
)
"""Ops that torch has in float32 alone."""

ALONE = ("algebra: ", *COMPLEX)
"""How nets begin whose op torch has in float32 alone: no net of 16 bits throughout has it."""

FLIPPED = 0.004
"""The share of parameters that a copy of a net has rounded otherwise to 16 bits (see `Row`)."""
COPIES = 3


def policy_of(model: Model, name: str) -> Policy:
    base = preset(name, model.layer_names)
    if name == "float32" or "." in name:
        return base
    low = tuple(op for op in FORWARD_OPS if op not in WIDE)
    return replace(base, low_precision_ops=low, fp32_ops=WIDE, promote_ops=())


@dataclass(frozen=True)
class Row:
    """What came of a net under a policy over STEPS steps.

    `state`: "verified" (no fault, nothing undecided); "within noise" (no loss further from torch's
    than `verify` allows or twice what torch's own losses have moved by until then, in copies of the
    net whose parameters round otherwise to 16 bits in FLIPPED of all cases, or whose products sum
    in another order); "apart" where neither holds; "refused" where torch or the importer does not
    run it, with what is said. `gap` and `own` are the largest gaps to torch and of the emulator to
    itself, `noise` torch's own where it was asked, in nats.
    """

    net: str
    policy: str
    state: str
    gap: float = 0.0
    own: float = 0.0
    noise: float = 0.0
    said: str = ""

    @property
    def holds(self) -> bool:
        return self.state in ("verified", "within noise")

    def __str__(self) -> str:
        numbers = f"{self.gap:.1e}  {self.own:.1e}  {self.noise:.1e}"
        return f"{self.net:<44}  {self.policy:<23}  {self.state:<12}  {numbers}  {self.said}"


class _Forked:
    """Stands for `subprocess` in `verify`: the training in a fork, which has torch already."""

    @staticmethod
    def run(command: Sequence[str], **_: Any) -> Any:
        folder = Path(command[-1])
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                torch_training.main(folder)
                code = 0
            except BaseException:  # whatever it is, the parent says it
                (folder / "fault").write_text(traceback.format_exc().strip())
            finally:
                os._exit(code)
        code, fault = os.waitpid(pid, 0)[1], folder / "fault"
        said = fault.read_text() if fault.exists() else ""
        return subprocess.CompletedProcess(command, code, "", said)


@contextmanager
def forked() -> Iterator[None]:
    """While it is entered, `verify` starts no Python of its own for each training in torch."""
    module: Any = verdicts
    real, module.subprocess = module.subprocess, _Forked
    try:
        yield
    finally:
        module.subprocess = real


def _noise(net: str, name: str, verdict: Verdict) -> Any:
    """Return by how much torch's own losses have moved up to each step, [steps]."""
    dtype, moved = getattr(torch, name.rpartition(".")[2]), []
    epsilon = 1e-7 if dtype == torch.float32 else FLIPPED * float(torch.finfo(dtype).eps)
    for copy in range(COPIES):
        for how in (Moved(copy, epsilon), Moved(copy)):
            task = task_of(net, how).with_steps(STEPS)
            model = task.build_model(task.load_dataset()).without_inner_masks()
            steps = trained_in_torch(policy_of(model, name), task, model, 0, "cpu")["steps"]
            losses, scales, skipped = np.array(steps, np.float64).T[:, : len(verdict.losses)]
            alike = (scales == verdict.scales) & (skipped == verdict.skipped)
            apart = np.where(np.isfinite(losses), np.abs(losses - verdict.losses), 0.0)
            moved.append(np.where(np.cumprod(alike), apart, 0.0))
    return np.maximum.accumulate(np.max(moved, axis=0))


def _judged(net: str, name: str, verdict: Verdict) -> Row:
    gaps = verdict.gaps[: verdict.compared]
    row = Row(net, name, "verified", float(gaps.max(initial=0.0)), verdict.own_gap)
    said = "; ".join((*verdict.faults, *verdict.undecided))
    if not said:
        return row
    noise = _noise(net, name, verdict)[: verdict.compared]
    allowed = np.maximum(verdict.allowed[: verdict.compared], 2.0 * noise)
    whole = verdict.compared == len(verdict.losses)
    state = "within noise" if whole and (gaps <= allowed).all() else "apart"
    return replace(row, state=state, noise=float(noise.max(initial=0.0)), said=said)


def rows_of(net: str, format_name: str) -> Iterator[Row]:
    """Yield a row for each policy of a format; of policies that give one step, for the first."""
    task, seen = task_of(net), list[Any]()
    model = task.build_model(task.load_dataset())
    for name in POLICIES[format_name]:
        if name == format_name != "float32" and net.startswith(ALONE):
            continue
        policy = policy_of(model, name)
        graph = apply_policy(trace_forward(model, BATCH), policy)
        steps = [(node.op.name, node.format, node.inputs) for node in graph.nodes]
        if steps in seen:
            continue
        seen.append(steps)
        try:
            with forked():
                yield _judged(net, name, verify(policy, task, steps=STEPS))
        except InputError as error:
            yield Row(net, name, "refused", said=f"{error}")


def main() -> None:
    """Print the rows, and how many hold in each format."""
    options = argparse.ArgumentParser(prog="tests.trained_ops")
    options.add_argument("nets", nargs="*")
    options.add_argument("--shard", default="0/1", help="every n-th net: 0/2 and 1/2 are all")
    given = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, count = map(int, given.shard.split("/"))
    held: dict[str, list[bool]] = {name: [] for name in POLICIES}
    for net in (given.nets or list(NETS))[first::count]:
        for format_name in POLICIES:
            rows = list(rows_of(net, format_name))
            held[format_name].append(all(row.holds for row in rows))
            for row in rows:
                print(row, flush=True)
    for format_name, each in held.items():
        print(f"{format_name}: {sum(each)} of {len(each)} nets")


if __name__ == "__main__":
    main()
