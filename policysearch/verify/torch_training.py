"""Trains with an exported torch file, in a process of its own: `python -m ... FOLDER`."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from policysearch.nn.chain import Chain
from policysearch.nn.model import DRAWN, DROPPED, OWN_LOSS, Model
from policysearch.train.feeding import batch_order, dropout_mask, initial_parameters
from policysearch.train.groups import Group, by_parameter, rate_and_decay
from policysearch.train.losses import LOSSES, loss_of
from policysearch.train.tasks import Task
from policysearch.values import InputError
from policysearch.verify.gpu_rounding import AsAGpu, written_out
from policysearch.verify.torch_optimizer import EmulatedDraws, SideBySide, torch_optimizer
from policysearch.verify.torch_trace import Trace, scale_events
from policysearch.verify.torch_twin import Twin
from policysearch.verify.verdict import FILE, JOB, RESULT, VALUES, Job

VECTOR = 64
"""A multiple of the values in a vector of any CPU, below float32."""

RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
"""Functions that have dropouts between their layers."""

FUNCTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "softmax_cross_entropy": functional.cross_entropy,
        "mean_squared_error": functional.mse_loss,
        "token_cross_entropy": functional.cross_entropy,
        "cross_entropy": functional.cross_entropy,
        "nll": functional.nll_loss,
        "l1": functional.l1_loss,
        "smooth_l1": functional.smooth_l1_loss,
        "huber": functional.huber_loss,
        "binary_cross_entropy": functional.binary_cross_entropy,
        "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
        "kl_div": lambda x, y: torch.kl_div(x, y, 1),  # the mean, without a warning
        "multi_margin": functional.multi_margin_loss,
        "soft_margin": functional.soft_margin_loss,
    }
)
"""torch's function for each of the losses that a study can name."""


def main(folder: Path) -> None:
    """Train the job in the folder and write the result beside it."""
    torch.set_num_threads(1)
    _as_the_policy_says()
    job: Job = pickle.loads((folder / JOB).read_bytes())
    dataset = job.task.load_dataset()
    built = job.task.build_model(dataset)
    model = built.without_inner_masks()
    module = _module(model, job.source)
    loaded(module, initial_parameters(model, job.seed))
    grouped = by_parameter(job.task.groups, model.parameters())
    for name, parameter in module.named_parameters():
        if name in grouped and grouped[name].frozen:
            parameter.requires_grad_(False)
    functional.dropout = dropout = _Dropout(job.seed)
    exported = _exported_module(folder / FILE)
    exported.OP[dropout] = "dropout"
    if model is not built:
        _leave_out_inner_masks(exported)
    keys = list(module.state_dict())
    kind = torch.device(job.place).type
    module = module.train().to(job.place)
    # a part of the user's net that is no layer computes nothing
    module = exported.apply_policy(module, strict=isinstance(model, Chain), device_type=kind)
    dtypes = _result_dtypes(module)
    scaler, trace = exported.make_grad_scaler(kind), Trace()
    steps, values = list[Any](), [_values(module)] if job.keeps else []
    for step in _steps(job, model, dataset, module, exported, scaler, dropout, grouped, trace):
        steps.append(step)
        if job.keeps:
            values.append(_values(module))
    leaves = [name for name, part in module.named_modules() if not list(part.children())]
    result = {"steps": steps, "dtypes": dtypes, "same_keys": keys == list(module.state_dict())}
    counts = {"keys": len(keys), "leaves": leaves}
    seen = {"calls": trace.calls, "events": scale_events(exported, kind)}
    (folder / RESULT).write_text(json.dumps({**result, **seen, **counts}))
    if job.keeps:
        named = {f"{n} {name}": x for n, row in enumerate(values) for name, x in row.items()}
        np.savez(folder / VALUES, **named)


def _exported_module(file: Path) -> Any:
    """Return the module in an exported file."""
    spec = importlib.util.spec_from_file_location("exported", file)
    assert spec is not None and spec.loader is not None
    sys.modules["exported"] = exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    return exported


def _values(module: Any) -> dict[str, Any]:
    """Return copies of parameters and buffers in float32, by name."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {n: x.detach().float().cpu().numpy().copy() for n, x in named if x.is_floating_point()}


def _as_the_policy_says() -> None:
    """Have a GPU compute float32 products in float32, and sum low ones in it; write LSTMs out."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch._VF.lstm = written_out(torch._VF.lstm)


def _leave_out_inner_masks(exported: Any) -> None:
    """Have the layers of a file call attention and recurrent layers so that these drop nothing."""
    layer, attention = exported._Layer, functional.scaled_dot_product_attention
    call = layer.call

    def without(self: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if function is attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            given = {**dict(zip(names, args, strict=False)), **kwargs, "dropout_p": 0.0}
            return call(self, function, (), given)
        if function in RECURRENT:
            x, second, third, *others = args
            # packed: sizes of its steps, and the states after them
            place = 3 if isinstance(third, torch.Tensor | tuple) else 2
            args = (x, second, third, *others[:place], 0.0, *others[place + 1 :])
        return call(self, function, args, kwargs)

    layer.call = without


def _module(model: Model, source: Any) -> Any:
    if isinstance(model, Chain):
        return Twin(model)
    maker: Any = source if source is not None else getattr(model, "source", None)
    return maker if isinstance(maker, torch.nn.Module) else maker()


def loaded(module: Any, arrays: Mapping[str, Any]) -> None:
    """Give the parameters and running statistics their initial values."""
    there = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, array in arrays.items():
            if isinstance(there[name], torch.nn.UninitializedParameter):
                there[name].materialize(array.shape)
            there[name].copy_(torch.from_numpy(np.array(array)))


def _result_dtypes(module: Any) -> dict[str, str]:
    """Return a dict that the first call of every submodule writes its result's dtype to."""
    dtypes: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(_: Any, __: Any, result: Any) -> None:
            first = _first(result)
            if first is not None:
                dtypes.setdefault(name, str(first.dtype).removeprefix("torch."))

        return hook

    for name, part in module.named_modules():
        part.register_forward_hook(note(name))
    return dtypes


def _first(result: Any) -> Any:
    """Return the first tensor of a result, None where there is none."""
    return next(_tensors(result), None)


def _tensors(result: Any) -> Iterator[Any]:
    """Yield the tensors of a result: itself, or those in its dicts, lists and tuples, in order."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, Iterable) and not isinstance(result, str):
        for part in result.values() if isinstance(result, Mapping) else result:
            yield from _tensors(part)


def _steps(
    job: Job,
    model: Model,
    dataset: Any,
    module: Any,
    exported: Any,
    scaler: Any,
    dropout: _Dropout,
    grouped: Mapping[str, Group],
    trace: Trace,
) -> Iterator[Any]:
    """Yield (loss, scale, skipped) of every step; the first is traced."""
    task, (inputs, labels) = job.task, dataset.train
    updated = _Updated(_rounds_ends_apart(job), list(module.parameters()))
    tensors = dict(zip(dict(module.named_parameters()), updated.tensors, strict=True))
    optimizer, begin = _stored_as_emulated(job, model, exported, tensors, grouped)
    nodes = task.tracing(model, task.batch_size).float32.nodes
    masks = sum(n.op.kind == "source" and DROPPED in n.attributes for n in nodes)
    if any(n.op.kind == "source" and DRAWN in n.attributes for n in nodes):
        raise InputError("noise drawn in forward: of torch's own; expected none but dropout masks")
    for step, indices in enumerate(batch_order(task, dataset, job.seed)):
        for group in optimizer.param_groups:
            _schedule(group, task, step)
        module.zero_grad()
        scale, skipped, losses = scaler.get_scale(), scaler.skipped, list[float]()
        for place, part in enumerate(indices.reshape(task.accumulation_steps, -1)):
            dropout.begin(step * task.accumulation_steps + place)
            batch = [torch.from_numpy(x[part]).to(job.place) for x in (*inputs, labels)]
            with _as_a_gpu(job.place), contextlib.nullcontext() if step or place else trace:
                loss = _loss(task, model, module, batch[:-1], batch[-1])
                share = loss / task.accumulation_steps if task.accumulation_steps > 1 else loss
                scaler.scale(share).backward()
            losses.append(loss.item())
            _check_masks(dropout.drawn, masks)
        updated.take_gradients()
        begin(step)
        _clip(task, scaler, optimizer, updated.tensors)
        scaler.step(optimizer)
        scaler.update()
        yield sum(losses) / len(losses), scale, scaler.skipped > skipped


def _stored_as_emulated(
    job: Job,
    model: Model,
    exported: Any,
    tensors: Mapping[str, Any],
    grouped: Mapping[str, Group],
) -> tuple[Any, Callable[[int], None]]:
    """Return the optimizer, by the file where that rounds updates, and what every step is told."""
    optimizer = _optimizer(job, tensors, grouped)
    if job.policy.rounding.update.mode != "stochastic":
        return optimizer, lambda step: None
    exported.store_updates(optimizer)
    exported.random_bits = EmulatedDraws(job.task, model, job.policy, job.seed, tensors, grouped)
    return optimizer, exported.random_bits.begin


def _as_a_gpu(place: str) -> Any:
    """Return what has a CPU round as a GPU does; nothing on another place."""
    return AsAGpu() if place == "cpu" else contextlib.nullcontext()


def _clip(task: Task, scaler: Any, optimizer: Any, parameters: list[Any]) -> None:
    """Clip the gradients as the task does, unscaled first."""
    if task.clip_norm is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, task.clip_norm)
    if task.clip_value is not None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(parameters, task.clip_value)


def _rounds_ends_apart(job: Job) -> bool:
    """Whether what is left at a tensor's end is rounded otherwise; matrices stay what they are."""
    return job.policy.optimizer_order == "eager" and job.task.build_optimizer().rule.elementwise


class _Updated:
    """What the optimizer updates: the parameters, those below float32 filled up to whole vectors.

    On a CPU the operations of torch's optimizers round once where a vector takes what they read,
    but in what is left at a tensor's end, past a multiple of some 16 or 32 values, products first.
    """

    def __init__(self, eager: bool, parameters: list[Any]) -> None:
        self.parameters = parameters
        narrow = (eager and p.dtype != torch.float32 for p in parameters)
        pairs = zip(parameters, narrow, strict=True)
        self.tensors = [_filled_up(p) if fills else p for p, fills in pairs]

    def take_gradients(self) -> None:
        """Give what is filled up the gradients of the parameters."""
        for tensor, own in zip(self.tensors, self.parameters, strict=True):
            if tensor is not own and own.grad is not None:
                tensor.grad = torch.zeros_like(tensor)
                tensor.grad.view(-1)[: own.numel()] = own.grad.flatten()


def _filled_up(parameter: Any) -> Any:
    """Return a tensor of as many axes that holds the parameter in front, and share it with it."""
    count = parameter.numel()
    shape = (*(1,) * (parameter.dim() - 1), -(-count // VECTOR) * VECTOR)
    padded = parameter.new_zeros(shape)
    padded.view(-1)[:count] = parameter.detach().flatten()
    parameter.data = padded.view(-1)[:count].view(parameter.shape)
    return padded


def _schedule(group: dict[str, Any], task: Task, step: int) -> None:
    """Set the rate of a parameter group, and its momentum or beta1, as torch's schedulers do."""
    group["lr"], momentum = task.rate_at(step, group["rate_factor"]), task.momentum_at(step)
    if momentum is not None and "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    elif momentum is not None:
        group["momentum"] = momentum


def _check_masks(drawn: int, expected: int) -> None:
    """Raise InputError where calls of torch drop values by masks of their own."""
    if drawn != expected:
        raise InputError(
            f"dropout: {expected - drawn} of {expected} inside torch's own calls, with masks of "
            "its own; expected a share of 0 there"
        )


class _Dropout:
    """A dropout by the masks that the emulator takes.

    It rounds x / (1 - p) once, as torch does on a GPU (`aten/src/ATen/native/cuda/Dropout.cu`);
    on a CPU torch rounds 1 / (1 - p) to the dtype of x first.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.begin(0)

    def begin(self, step: int) -> None:
        """Take the masks of a step from now on."""
        self.step, self.drawn = step, 0

    def __call__(
        self, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Any:
        if has_torch_function_unary(input):
            return handle_torch_function(self, (input,), input, p, training, inplace)
        if not training or not p:
            return input
        mask = torch.from_numpy(dropout_mask(input.numel(), p, self.seed, self.step, self.drawn))
        self.drawn += 1
        return (input.float() * mask.reshape(input.shape).to(input.device)).to(input.dtype)


def _loss(task: Task, model: Model, module: Any, inputs: list[Any], targets: Any) -> Any:
    names = [item.name for item in model.inputs]
    if model.labels:
        inputs = [*inputs]
        inputs.insert(names.index(model.labels), targets)
    result = module(*inputs)
    if model.loss == OWN_LOSS:
        return next(x for x in _tensors(result) if x.ndim == 0)
    return named_loss(loss_of(model, task.loss), _first(result), targets)


def named_loss(name: str, logits: Any, targets: Any) -> Any:
    """Return torch's loss of the name: one of classes, or of numbers as one-hot rows are."""
    row, of_classes = LOSSES[name], not targets.is_floating_point()
    if row.classes or (of_classes and name == "softmax_cross_entropy"):
        flat = logits.movedim(row.axis, -1).flatten(0, -2)
        return FUNCTIONS[name](flat, targets.reshape(-1))
    if targets.numel() != logits.numel():
        targets = functional.one_hot(targets, logits.shape[-1])
    return FUNCTIONS[name](logits, targets.reshape(logits.shape).float())


def _optimizer(job: Job, parameters: Mapping[str, Any], grouped: Mapping[str, Group]) -> Any:
    """Return torch's optimizer of the task, in a group for every rate and weight decay."""
    task, policy = job.task, job.policy
    held: dict[Any, dict[tuple[float, float], list[Any]]] = {}
    for name, parameter in parameters.items():
        group, of_task = grouped.get(name), task.build_optimizer()
        if group is None or not group.frozen:
            kind = rate_and_decay(group, of_task, parameter.dim())
            by = group.moved_by(of_task) if group else of_task
            alike = replace(by, weight_decay=of_task.weight_decay, decays=of_task.decays)
            held.setdefault(alike, {}).setdefault(kind, []).append(parameter)
    # where the file rounds what is stored, torch's optimizer has float32 alone
    apart = policy.master_weights or policy.rounding.update.mode == "stochastic"
    fused = None if apart else policy.optimizer_order == "fused"
    made = []
    for optimizer, rows in held.items():
        groups = [
            {"params": params, "rate_factor": factor, "weight_decay": decay}
            for (factor, decay), params in rows.items()
        ]
        made.append(torch_optimizer(optimizer, groups, task.learning_rate, fused))
    return made[0] if len(made) == 1 else SideBySide(made)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
