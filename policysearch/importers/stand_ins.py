"""What torch.export stumbles over while it runs a forward pass, and what it has in its place.

What a module does to gradients itself is refused: the forward pass, all that is read, does not
show it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from traceback import FrameSummary, StackSummary, extract_tb
from types import MappingProxyType
from typing import Any
from unittest import mock

import torch
from torch._C._profiler import symbolize_tracebacks
from torch._decomp import decomposition_table
from torch._functorch import eager_transforms, vmap
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export import _trace
from torch.fx import Graph
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._traceback import CapturedTraceback
from torch.utils.checkpoint import CheckpointFunction

from policysearch.importers.own_functions import Stated, applied, kind, stated, written_out
from policysearch.values import InputError

ELSEWHERE = tuple(f"{os.path.dirname(file)}{os.sep}" for file in (torch.__file__, __file__))
"""Where the lines are that are not the user's."""

GRADIENT_REMEDY = "expected the gradients that torch derives; leave it out"
DERIVATIVE_REMEDY = (
    "write the derivative out with ops of forward, or take the difference of two calls"
)


def check_hooks(module: Any) -> None:
    """Raise InputError where a parameter or a part of the module has a hook on gradients."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InputError(f"parameter {name}: a hook on its gradient; {GRADIENT_REMEDY}")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise InputError(
                f"module {name or type(part).__name__}: a backward hook; {GRADIENT_REMEDY}"
            )


def module_copy(module: Any, copies: Mapping[int, Any] = MappingProxyType({})) -> Any:
    """Return a copy of a module, `copies` in place of what has their ids.

    What it computed and holds, as the hook of torch's first `weight_norm` does, is copied as
    values: torch copies no tensor that has a graph behind it.
    """
    values = (x for part in module.modules() for x in vars(part).values())
    computed = {id(x): x.detach().clone() for x in tensors_in(values) if not x.is_leaf}
    return copy.deepcopy(module, computed | dict(copies))


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors there are among values, and inside their lists and dicts."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def check_layouts(module: Any) -> None:
    """Raise InputError for what a module holds as a sparse tensor, or without a shape yet."""
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(value):
            remedy = "run forward once before, where the module is made"
            raise InputError(f"{name}: of a lazy layer, without a shape yet; {remedy}")
        if value.layout != torch.strided:
            given = str(value.layout).removeprefix("torch.")
            raise InputError(f"{name}: {given}; expected a dense tensor: .to_dense()")


def check_types(arrays: Mapping[str, Any]) -> None:
    """Raise InputError for parameters and statistics that are not float32."""
    for name, value in arrays.items():
        if value.is_complex():
            remedy = "keep it as torch.view_as_real(value) and read it by torch.view_as_complex"
            raise InputError(f"{name}: {value.dtype}; expected pairs of float32: {remedy}")
        if value.dtype != torch.float32:
            remedy = "expected torch.float32, say by module.float(): formats are the policy's"
            raise InputError(f"{name}: {value.dtype}; {remedy}")


@contextlib.contextmanager
def own_gradients_refused() -> Iterator[None]:
    """While it is entered, what a forward pass does to gradients itself raises InputError."""
    derivative = _refusal("derivatives in forward", DERIVATIVE_REMEDY)
    hook = _refusal("Tensor.register_hook in forward", GRADIENT_REMEDY)
    mapped = _refusal("torch.func.vmap", "write it over a further axis: torch.einsum, torch.bmm")
    with (
        mock.patch.object(
            torch.autograd.Function, "apply", classmethod(functools.partial(_checked_apply, {}))
        ),
        mock.patch.object(torch.Tensor, "register_hook", hook),
        mock.patch.object(torch.autograd, "_engine_run_backward", derivative),
        mock.patch.object(eager_transforms, "grad_increment_nesting", derivative),
        mock.patch.object(eager_transforms, "jvp_increment_nesting", derivative),
        mock.patch.object(vmap, "vmap_increment_nesting", mapped),
    ):
        yield


def _checked_apply(
    known: dict[Hashable, Stated | None], function: Any, *arguments: Any, **options: Any
) -> Any:
    """Apply a function whose gradient can be written, as those of torch's own can.

    `known` says of which kinds of calls that was asked, and keeps the answers.
    """
    if function is CheckpointFunction:  # it runs forward without gradients, and again with them
        run, _, *operands = arguments
        return run(*operands)
    if function.__module__.startswith("torch."):
        return applied(function, *arguments, **options)
    call = kind(function, arguments)
    if call not in known:
        known[call] = stated(function, arguments)
    gradient = known[call]
    if options or gradient is None:
        raise InputError(
            f"autograd.Function {function.__name__}: a gradient of its own; {GRADIENT_REMEDY}"
        )
    return written_out(function, arguments, gradient)


def _refusal(what: str, remedy: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise InputError(f"{what}: {remedy}")

    return refuse


@contextlib.contextmanager
def results_known() -> Iterator[None]:
    """While it is entered, torch.export knows what CTC, grouped products and batch norms give.

    Of the first it has no shapes: they are those of a value inside, which no program of the export
    has. Of the second it takes bfloat16 alone, unlike the kernels. The third lies in the order of
    axes, or with channels last, and not in that of its input.
    """

    def alignments(mode: Any, op: Any, log_p: Any, *others: Any, **options: Any) -> Any:
        with mode:
            return log_p.new_empty(log_p.shape[1:-1]), log_p.new_empty(log_p.shape)

    def grouped(mode: Any, op: Any, rows: Any, matrices: Any, *_: Any, **__: Any) -> Any:
        with mode:
            return rows.new_empty(*rows.shape[:-1], matrices.shape[-1])

    aten = torch.ops.aten
    known = dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), alignments)
    known |= {op.default: grouped for op in (getattr(aten, "_grouped_mm", None),) if op}
    legit = aten._native_batch_norm_legit
    norms = (aten.native_batch_norm.default, legit.default, legit.no_stats)
    made = {norm: _in_order(decomposition_table[norm]) for norm in norms}
    with (
        mock.patch.dict(op_implementations_dict, known),
        mock.patch.dict(decomposition_table, made),
    ):
        yield


def _in_order(rule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rule)  # torch asks for its module
    def normalised(x: Any, *others: Any, **options: Any) -> Any:
        results = rule(x, *others, **options)
        return torch.empty_like(x, memory_format=suggest_memory_format(x)), *results[1:]

    return normalised


def _counts(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """torch.bincount, of numbers below `minlength`: else its size depends on values."""
    if minlength < 1:
        raise InputError(
            "torch.bincount: a size that depends on values; expected minlength, above all numbers"
        )
    found = x.unsqueeze(-1) == torch.arange(minlength)
    if weights is None:
        return found.long().sum(0)
    return torch.where(found, weights.unsqueeze(-1), 0.0).sum(0)


def _histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """torch.histc, whose last bin has its upper end too; it has no gradient."""
    x = x.detach().flatten()
    low, high = (x.min(), x.max()) if min == max else (min, max)
    place = ((x - low) * bins / (high - low)).floor().clamp(max=bins - 1).unsqueeze(-1)
    there = ((x >= low) & (x <= high)).unsqueeze(-1)
    return ((place == torch.arange(bins)) & there).to(x.dtype).sum(0)


def _signal(
    spectrum: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """torch.istft, whose own asks the windows' sum for zeros: frames back, added where they lap."""
    if return_complex:
        raise InputError("torch.istft: return_complex; expected a real signal")
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    window = torch.ones(width) if window is None else window
    left = (n_fft - width) // 2
    window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    half = spectrum[..., : n_fft // 2 + 1, :].transpose(-1, -2)
    frames = torch.fft.irfft(half, n_fft, norm="ortho" if normalized else "backward") * window
    count, lead = frames.shape[-2], frames.shape[:-2]
    whole = n_fft + hop * (count - 1)

    def added(rows: Any) -> Any:
        columns = rows.reshape(-1, count, n_fft).transpose(1, 2)
        return torch.nn.functional.fold(columns, (1, whole), (1, n_fft), stride=(1, hop)).flatten(1)

    start = n_fft // 2 if center else 0
    end = start + length if length else whole - start
    weights = added(window.square().expand(1, count, n_fft))[..., start:end]
    signal = (added(frames)[..., start:end] / weights).reshape(*lead, -1)
    return torch.nn.functional.pad(signal, (0, max(0, end - whole)))


COUNTS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"bincount": _counts, "histc": _histogram, "istft": _signal}
)
"""What is written out while a forward pass is read, of torch and of Tensor."""


PLACES = ((torch, "where"), (torch, "nonzero"), (torch.Tensor, "nonzero"))
"""What lists the places where a mask is true."""


def _some(find: Callable[..., Any]) -> Callable[..., Any]:
    """Return what finds places, of which there are some wherever forward asks for their number."""

    def found(*given: Any, **options: Any) -> Any:
        places = find(*given, **options)
        listed = places[0] if isinstance(places, tuple) else places
        if listed.ndim and isinstance(listed.shape[0], torch.SymInt):
            torch._check(listed.shape[0] > 0)
        return places

    return found


@contextlib.contextmanager
def counts_known() -> Iterator[None]:
    """While it is entered, COUNTS are written out, and PLACES are some."""
    with contextlib.ExitStack() as stack:
        for owner, name in PLACES:
            stack.enter_context(mock.patch.object(owner, name, _some(getattr(owner, name))))
        for owner in (torch, torch.Tensor):
            for name, function in COUNTS.items():
                stack.enter_context(mock.patch.object(owner, name, function))
        yield


@contextlib.contextmanager
def fields_known(module: Any) -> Iterator[None]:
    """While it is entered, a dataclass that forward returns is a dict of its fields."""

    def opened(_: Any, given: Any, result: Any) -> Any:
        if not is_dataclass(result) or isinstance(result, Mapping):
            return result
        named = ((field.name, getattr(result, field.name)) for field in fields(result))
        return {name: value for name, value in named if value is not None}

    hook = module.register_forward_hook(opened)
    try:
        yield
    finally:
        hook.remove()


def said_of(error: BaseException, examples: int) -> str:
    """Return what torch.export says of a forward pass, a remedy, and the line of the user's."""
    lines = (f for f in extract_tb(error.__traceback__) if not f.filename.startswith(ELSEWHERE))
    frame = next(reversed([*lines]), None)
    place = f" ({os.path.basename(frame.filename)}:{frame.lineno})" if frame else ""
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            "a data-dependent branch, or a number out of a tensor; expected a forward without "
            "branches on values: torch.where keeps both ways, torch.clamp a bound, and rows that a "
            f"mask chooses need no check{place}"
        )
    words = str(error).strip().splitlines() or [type(error).__name__]
    return (
        f"{words[0]}; expected a forward that it takes, here with {examples} examples and without "
        f"branches on values{place}"
    )


def hooks_of(part: Any) -> dict[str, dict[Any, Any]]:
    """Return copies of what holds the hooks of a module, by attribute."""
    return _held(part, lambda name: "_hooks" in name)


def _held(part: Any, of: Callable[[str], bool]) -> dict[str, dict[Any, Any]]:
    # Those of other kinds are a library's own, as the frozen configuration of diffusers' nets.
    own = (dict, OrderedDict)
    return {name: dict(x) for name, x in vars(part).items() if of(name) and type(x) in own}


@contextlib.contextmanager
def attributes_kept(module: Any) -> Iterator[None]:
    """Give a module's parts back, at the end, what forward sets: attributes, buffers and hooks."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    inside = [(part, _held(part, lambda name: name.startswith("_"))) for part, _ in before]
    try:
        yield
    finally:
        for part, attributes in before:
            vars(part).clear()
            vars(part).update(attributes)
        for part, first in inside:
            for name, held in first.items():
                vars(part)[name].clear()
                vars(part)[name].update(held)


UNREAD = (
    (proxy_tensor, "_extract_tensor_metadata"),
    (_trace, "_replace_unbacked_bindings"),
    (Graph, "lint"),
)
"""What torch says of every call a second time, and takes a tenth of an export for; by version."""


@contextlib.contextmanager
def read_alone(lines: bool) -> Iterator[None]:
    """While it is entered, torch writes no code of the graphs it makes, which nobody runs.

    Of every call it says the innermost line of the user's `forward`, or nothing without `lines`,
    and nothing of what is UNREAD.
    """
    said = _innermost if lines else lambda _: StackSummary()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_use_lazy_graph_module(True))
        stack.enter_context(mock.patch.object(CapturedTraceback, "summary", said))
        for owner, name in UNREAD:
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, lambda *_, **__: None))
        yield


def _innermost(captured: Any) -> StackSummary:
    """Return the innermost line of a `forward` that is the user's; torch keeps no others."""
    known: Any = symbolize_tracebacks([captured.tb])[0] if captured.tb is not None else []
    own = (f for f in known if f["name"] == "forward" and not f["filename"].startswith(ELSEWHERE))
    return StackSummary(FrameSummary(f["filename"], f["line"], f["name"]) for f in islice(own, 1))
