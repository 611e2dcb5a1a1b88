"""The text of a first study of a net: every key that matters, and why it is as it is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Template
from typing import Any

from policysearch.cost.device_file import device_at
from policysearch.cost.devices import Device
from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.rewrite.patterns import block_of
from policysearch.space.decided.loss_scales import HIGHEST, LOWEST
from policysearch.space.target import left_out
from policysearch.study.specification import StudySpec, objective_of, spec_from_text
from policysearch.train.scripts.script import Script
from policysearch.values import InputError

FEW_GROUPS = 12
"""Up to so many layers, then blocks, are decided one by one."""

LARGEST_TRAINED_BATCH = 64
STEPS = 300

TEXT = Template("""\
# A study of $net, written by `policysearch init`. What it assumed is marked "assumed".
[study]
name = "$name"
$target_line
trials = 24                     # policies to train, each with every seed
seeds = [0, 1, 2]               # how sure a gap is comes from the seeds
$run_today
[task]
$trained
# Where the policies will run: speed and memory are modeled for this device, not measured here.
[cost]
device = "$device"$device_assumed
stack = "$stack"
$priced# A larger net of the same kind is priced in its place by [cost.net]: `policysearch keys`.

[space]
formats = [$formats]  # what the device multiplies
granularity = "$granularity"$granularity_comment
base = "$baseline"
master_weights = [true, false]  # false: parameters stored low, without a float32 copy
${updates}loss_scales = [$loss_scales]
$scaler${scalings}ladder = [$ladder]
""")

NET = Template("""\
model = "$model"
data = "$data"
optimizer = "adamw"             # assumed: your own optimizer, rate and schedule decide what holds
learning_rate = 0.001           # assumed
weight_decay = 0.01             # assumed
weight_decay_for = "matrices"
batch_size = $batch_size$batch_comment
steps = $steps                     # $steps_said
tail_steps = $tail_steps
$attention
[task.schedule]
kind = "cosine"                 # assumed
warmup_steps = $warmup_steps
""")

SCRIPT = Template("""\
script = "$script"  # its net, batches, recipe and precision; a key here goes before its own
$steps$attention""")

TARGET = 'target = "{}"{}# only what an exported file of that framework can say is searched'
MINDSPORE = tuple(f"mindspore.{level}" for level in ("O1", "O2", "O3"))
"""The levels of MindSpore, of which O2 is run most."""

ENOUGH = "assumed: enough for float32 to learn; more finds late failures"
RUN_TODAY = 'baseline = "{}"  # what you run today{}\n'
ATTENTION = 'attention = "flash"             # what runs your scaled_dot_product_attention\n'

FLASH = "flash_attention"
NOT_FLASH = (
    "attention is trained and priced as torch's MATH kernel, with a softmax in float32: the flash "
    "kernel modeled here takes [batch, heads, length, width]"
)
"""What is said of calls of attention that the flash kernel does not run."""

ALL_ROWS = (
    "rows that a mask chooses, as experts have them, are all computed and priced: each expert "
    "costs as if it took every row, so the share of experts in the modeled time is too high"
)
"""What is said of selections whose size depends on values."""


@dataclass(frozen=True)
class FirstStudy:
    """What a user says of a net, or what is assumed of it.

    `net` is the file as named, `model` and `data` are "file.py:function" in it, `device_name` is
    the device as a study names it, `batch` is the batch as trained, `assumed` holds the names of
    the fields that nobody said. `script` is "file.py:function" of a script in place of net and
    data; it says batch, baseline and, where `steps` is 0, steps itself. `loss_scale` is what its
    scaler does.
    """

    net: str
    name: str
    model: str
    data: str
    device_name: str
    device: Device
    stack: str
    baseline: str
    batch: int
    steps: int = STEPS
    assumed: tuple[str, ...] = ()
    script: str = ""
    loss_scale: LossScale | None = None

    def text(self, model: Model, dataset: Dataset, batch_size: int = 0) -> str:
        """Return the study in TOML, for this model and data; a script has its own `batch_size`."""
        trained = batch_size or min(self.batch, LARGEST_TRAINED_BATCH, dataset.train_count)
        granularity, groups = grouping(model)
        return TEXT.substitute(
            net=self.net,
            name=self.name,
            target_line=TARGET.format(self.target, " " * max(1, 21 - len(self.target))),
            baseline=self.baseline,
            run_today=self._run_today(),
            trained=self._net_text(trained, model.calls_attention),
            device=self.device_name,
            device_assumed=self._assumption("device", "  # assumed; see `policysearch hardware`"),
            stack=self.stack,
            priced=self._price_text(trained),
            formats=_quoted_names(self._formats()),
            granularity=granularity,
            granularity_comment=f"  # {groups} that are decided one by one",
            scalings=self._scalings(),
            updates=self._updates(),
            loss_scales=_quoted_names(self._loss_scales()),
            scaler=self._scaler(),
            ladder=_quoted_names(self._ladder()),
        )

    @property
    def target(self) -> str:
        """The framework that policies are exported to: that of the stack."""
        return _framework(self.stack)

    def _formats(self) -> tuple[str, ...]:
        """Return the formats to search: the device's, and the 16 bits that are run today."""
        first, usual, *eight = formats_on(self.device)
        run = preset(self.baseline, ("layer",)).layer("layer").compute
        own = [run] if run == "float16" != usual and run in self.device.formats else []
        return (first, usual, *own, *eight)

    def _run_today(self) -> str:
        """Return the baseline, which a script says itself."""
        assumed = "baseline" in self.assumed
        if self.script and assumed:
            return ""
        return RUN_TODAY.format(self.baseline, "; assumed" if assumed else "")

    def _net_text(self, batch_size: int, attends: bool) -> str:
        attention = ATTENTION * attends
        if self.script:
            steps = f"steps = {self.steps}\n" if self.steps else ""
            return SCRIPT.substitute(script=self.script, steps=steps, attention=attention)
        return NET.substitute(
            model=self.model,
            data=self.data,
            batch_size=batch_size,
            batch_comment=f"  # smaller than yours, {self.batch}" * (batch_size < self.batch),
            steps=self.steps,
            steps_said=ENOUGH if "steps" in self.assumed else "given",
            tail_steps=max(1, self.steps // 6),
            attention=attention,
            warmup_steps=self.steps // 10,
        )

    def words(self, model: Model, dataset: Dataset) -> list[str]:
        """Return what was found, and what was assumed with the option that says otherwise."""
        count = sum(math.prod(spec.shape) for spec in model.parameters())
        split = f"{dataset.train_count} to train on and {dataset.validation_count} to validate"
        found = f"{model.name}, {count:,} parameters, {grouping(model)[1]}; {split}"
        lines = [f"assumed {name}: {value} (--{name})" for name, value in self._assumptions()]
        if self.script:
            return [found, *lines]
        lines.insert(0, f"taken: {self.model} and {self.data}")
        return [found, *lines, "assumed optimizer, rate and schedule: edit [task] to your own"]

    def limits(self, spec: StudySpec) -> list[str]:
        """Return which formats no layer runs in, and where launches set the time at this batch."""
        objective = objective_of(spec)
        lines = left_out(spec.space, objective.model, spec.study.target)
        step = spec.task.tracing(objective.model, spec.task.batch_size).float32
        if spec.task.attention == "flash" and FLASH not in {node.op.name for node in step.nodes}:
            lines.append(NOT_FLASH)
        firsts = {node.id for node in step.nodes if node.op.name == "argmax" and node.shape == (1,)}
        if any(node.op.name == "index" and firsts & {*node.inputs} for node in step.nodes):
            lines.append(ALL_ROWS)  # in place of the rows that a mask leaves stands its first
        if "batch" in self.assumed and objective.float32_price.time.launch_bound:
            other = "another" if self.script else "the batch as you train it"
            lines.append(
                f"at batch {objective.cost_batch_size} launches, not arithmetic, set the modeled "
                f"time, and formats change little: --batch N prices {other}"
            )
        return lines

    def _assumptions(self) -> Iterator[tuple[str, object]]:
        said = {"device": self.device_name, "batch": self.batch, "baseline": self.baseline}
        told = ("batch", "baseline") if self.script else ()
        return ((n, value) for n, value in said.items() if n in self.assumed and n not in told)

    def _assumption(self, field: str, comment: str) -> str:
        return comment if field in self.assumed else ""

    def _price_text(self, trained: int) -> str:
        if trained == self.batch:
            return ""
        own = "the batch that you train at" + self._assumption("batch", ", assumed")
        reason = "of --batch; the script trains at another" if self.script else own
        return f'batch_size = {self.batch}\nbatch_size_reason = "{reason}"\n'

    def _scalings(self) -> str:
        eight = any(name.startswith("float8") for name in formats_on(self.device))
        eight = eight and self.target == "torch"
        return 'scalings = ["current"]          # of 8-bit operands, as torchao has them\n' * eight

    def _updates(self) -> str:
        """Return how updates are rounded: torch files round by chance onto bfloat16 alone."""
        if sixteen_bits(self.device) != "bfloat16" or self.target != "torch":
            return ""
        return 'update_roundings = ["nearest_even", "stochastic"]  # of what is stored low\n'

    def _loss_scales(self) -> Sequence[str]:
        """Return the kinds: float16 has gradients that vanish without a scale."""
        return ("none", *["dynamic"] * ("float16" in self._formats()))

    def _scaler(self) -> str:
        """Return the numbers of the script's own scaler; its first value as a power of two."""
        scale = self.loss_scale
        if scale is None or "dynamic" not in self._loss_scales():
            return ""
        power = min(max(LOWEST, round(math.log2(scale.init_scale))), HIGHEST)
        return (
            f"log2_scale = [{power}, {power}]           # your GradScaler, as are the next three\n"
            f"growth_intervals = [{scale.growth_interval}]\n"
            f"growth_factors = [{scale.growth_factor}]\n"
            f"backoff_factors = [{scale.backoff_factor}]\n"
        )

    def _ladder(self) -> Iterator[str]:
        yield "uniform"
        if self.target == "mindspore":
            yield from (level for level in MINDSPORE if level != self.baseline)
            return
        if "tfloat32" in self.device.formats:
            yield "torch.tf32"
        if "bfloat16" in self.device.formats and self.baseline != "torch.autocast.bfloat16":
            yield "torch.autocast.bfloat16"
        if "float8_e4m3fn" in self.device.formats:
            yield "torchao.tensorwise"


def study_of(
    script: Script,
    device: str,
    *,
    name: str = "",
    stack: str = "torch.compile",
    batch_size: int | None = None,
    batch_size_reason: str = "",
    **study: Any,
) -> StudySpec:
    """Return a study of what a script trains, its precision the baseline.

    Steps are priced on `device` under `stack`, at a `batch_size` other than the script's where
    there is a `batch_size_reason`. What is searched is what `policysearch init` has for that
    device; `study` are keys of [study] in place of those (`trials`, `seeds`).
    """
    task, row = script.task, device_at(device)
    first = FirstStudy(
        net=script.model.name,
        name=name or script.model.name,
        model="lenet5",
        data="digits32",
        device_name=device,
        device=row,
        stack=stack,
        baseline=usual_baseline(row, stack, script.baseline),
        batch=task.batch_size,
        loss_scale=script.loss_scale,
    )
    made = spec_from_text(first.text(script.model, script.data), f"study of {first.name}")
    if script.model.calls_attention:
        task = replace(task, attention=made.task.attention)
    cost = replace(made.cost, batch_size=batch_size, batch_size_reason=batch_size_reason)
    said: Mapping[str, Any] = {"baseline": script.baseline, **study}
    try:
        section = replace(made.study, **said)
    except TypeError as error:
        raise InputError(f"study_of: {error}; expected keys of [study]") from None
    return replace(made, study=section, task=task, cost=cost)


def formats_on(device: Device) -> tuple[str, ...]:
    """Return the formats to search on a device: one of 16 bits, and one of 8 where it has it."""
    eight = tuple(name for name in ("float8_e4m3fn",) if name in device.formats)
    return ("float32", sixteen_bits(device), *eight)


def usual_baseline(device: Device, stack: str, own: str = "float32") -> str:
    """Return what a script runs that is low, its `own`; else what is run most on such a device."""
    if own != "float32":
        return own
    if _framework(stack) == "mindspore":
        return MINDSPORE[1]
    return f"torch.autocast.{sixteen_bits(device)}"


def _framework(stack: str) -> str:
    """Return the framework of a stack: "torch.compile" is torch's."""
    return stack.partition(".")[0]


def sixteen_bits(device: Device) -> str:
    """Return the format of 16 bits to train in on a device: bfloat16 where it has it."""
    return "bfloat16" if "bfloat16" in device.formats else "float16"


def grouping(model: Model) -> tuple[str, str]:
    """Return the granularity for a model, and what it makes in words."""
    layers = [name for name in model.layer_names if model.parameters_of(name)]
    if len(layers) <= FEW_GROUPS:
        return "layer", f"{len(layers)} layers"
    blocks = {block_of(name) or name for name in layers}
    if len(blocks) <= 2 * FEW_GROUPS:
        return "block", f"{len(blocks)} blocks of {len(layers)} layers"
    types = {model.layer_types.get(name) or name for name in layers}
    return "type", f"{len(types)} types of {len(layers)} layers"


def _quoted_names(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
