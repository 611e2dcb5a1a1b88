"""Records a real torch training: exponents by op, layer and direction, a line of JSON per step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from policysearch.diagnose.packed import NOT_FINITE, ZERO, Packer

SAMPLE = 1 << 16
"""So many values of a tensor are looked at, spread evenly over it."""


class Exponents:
    """Histograms of exponents, by direction, layer and op: {exponent: values}.

    An op may run several times in a layer: its row stands where its largest value came up.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], Counter[int]] = {}

    def add(self, direction: str, layer: str, op: str, tensor: torch.Tensor) -> None:
        """Count the values of a tensor, a sample of them where they are many."""
        if not tensor.is_floating_point() or not tensor.numel():
            return
        flat = tensor.detach().reshape(-1)
        if flat.numel() > SAMPLE:
            flat = flat[:: flat.numel() // SAMPLE]
        values = flat.float()
        _, exponents = torch.frexp(values)
        exponents = torch.where(values == 0, ZERO, exponents)
        exponents = torch.where(torch.isfinite(values), exponents, NOT_FINITE)
        counts = torch.bincount(exponents.long() - NOT_FINITE).tolist()
        own = {i + NOT_FINITE: count for i, count in enumerate(counts) if count}
        key = direction, layer, op
        row = self.rows.get(key, Counter())
        if not row or (NOT_FINITE not in row and (NOT_FINITE in own or max(own) > max(row))):
            self.rows[key] = self.rows.pop(key, row)
        row.update(own)

    def plain(self) -> list[list[Any]]:
        """Return rows of [direction, layer, op, first exponent, counts from there on]."""
        rows = []
        for key, row in self.rows.items():
            special = {str(e): row[e] for e in (NOT_FINITE, ZERO) if e in row}
            usual = [e for e in row if e > ZERO]
            first, last = (min(usual), max(usual)) if usual else (0, -1)
            rows.append([*key, first, [row[e] for e in range(first, last + 1)], special])
        return rows


POLES: dict[str, int] = {
    **dict.fromkeys(("log", "log2", "log10", "rsqrt", "reciprocal"), 0),
    **dict.fromkeys(("div", "div_"), 1),
}
"""Ops that are infinite where an argument is zero, and which argument that is."""


class _Watching(TorchDispatchMode):  # type: ignore[misc]
    """Counts what every op gives from a recorded step's forward pass to its backward pass."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.alone = torch._C._len_torch_dispatch_stack() == 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        recorder = self.recorder
        if torch._C._current_autograd_node() is not None:
            recorder.forward = recorder.forward and bool(recorder.layers)  # or checkpointed
        elif recorder.forward and not recorder.busy and torch.is_grad_enabled():
            recorder.busy = True
            self._see(func, args, found)
            recorder.busy = False
        return found

    def _see(self, func: Any, args: Any, found: Any) -> None:
        recorder = self.recorder
        if not isinstance(found, torch.Tensor) or _is_view(func) or recorder.is_scaling(args):
            return
        layer = recorder.layers[-1] if recorder.layers else ""
        name = func.__name__.partition(".")[0]
        recorder.exponents.add("fprop", layer, name, found)
        place = POLES.get(name, len(args))
        if place < len(args) and isinstance(args[place], torch.Tensor):
            recorder.exponents.add("pole", layer, name, args[place])


def _is_view(func: Any) -> bool:
    """Return whether an op gives what it was given."""
    ends = [given.alias_info for given in func._schema.returns]
    return any(info is not None and not info.is_write for info in ends)


class Recorder:
    """Hooks on a module and its optimizer that record every `every`-th step; see `record`."""

    def __init__(
        self, module: Any, optimizer: Any, path: Path, every: int, scaler: Any, clip: float | None
    ) -> None:
        self.module, self.optimizer, self.path = module, optimizer, path
        self.every, self.scaler, self.clip = every, scaler, clip
        self.step, self.busy = 0, False
        self.forward = False  # from where the module begins to where gradients flow
        self.layers: list[str] = []
        self.exponents, self.raw, self.packer = Exponents(), dict[str, float](), Packer()
        self.handles: list[Any] = []
        self.mode: _Watching | None = None
        self.before: dict[str, torch.Tensor] = {}
        self.final = 0.0
        self.clipped_from: float | None = None
        self.clipping = torch.nn.utils.clip_grad_norm_

    def start(self) -> None:
        """Put the hooks on, and one around torch's clipping, which says what norm it has seen."""
        clipping = self.clipping

        def watched(*given: Any, **options: Any) -> Any:
            norm = clipping(*given, **options)
            self.clipped_from = float(norm.detach())
            return norm

        torch.nn.utils.clip_grad_norm_ = watched
        for name, part in self.module.named_modules():
            self.handles.append(part.register_forward_pre_hook(self._entry_hook(name)))
            self.handles.append(part.register_forward_hook(self._exit_hook(name), always_call=True))
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                hook = self._gradient(name)
                self.handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self.handles.append(self.optimizer.register_step_pre_hook(self._step_hook))
        self.handles.append(self.optimizer.register_step_post_hook(self._after_step))

    def stop(self) -> None:
        """Take the hooks off."""
        self._unwatch()
        torch.nn.utils.clip_grad_norm_ = self.clipping
        for handle in self.handles:
            handle.remove()

    @property
    def _on(self) -> bool:
        return self.step % self.every == 0

    def _unwatch(self) -> None:
        self.forward = False
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode = None

    def _entry_hook(self, name: str) -> Callable[..., None]:
        def hook(part: Any, inputs: Any) -> None:
            if not self._on or not torch.is_grad_enabled():
                return
            if self.mode is None:
                self.mode = _Watching(self)
                self.mode.__enter__()
            self.forward = True
            self.layers.append(name)

        return hook

    def _exit_hook(self, name: str) -> Callable[..., None]:
        def hook(part: Any, inputs: Any, output: Any) -> None:
            if not self.layers or self.layers[-1] != name:
                return
            self.layers.pop()
            if isinstance(output, torch.Tensor) and output.requires_grad:
                output.register_hook(
                    lambda grad: self._note_gradient(name, type(part).__name__, grad)
                )
            # the loss is computed behind the module; beside another's mode ours cannot stay
            if not self.layers and self.mode is not None and not self.mode.alone:
                self._unwatch()

        return hook

    def _note_gradient(self, name: str, kind: str, grad: torch.Tensor) -> None:
        self.exponents.add("dgrad", name, kind, grad)

    def _gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        layer, _, own = name.rpartition(".")

        def hook(parameter: torch.Tensor) -> None:
            if self._on and parameter.grad is not None:
                self.raw[name] = float(parameter.grad.float().norm())
                self.exponents.add("wgrad", layer, own, parameter.grad)

        return hook

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                yield name, parameter

    def is_scaling(self, args: Any) -> bool:
        """Return whether an op multiplies a loss by the loss scale, which float32 holds."""
        if self.scaler is None or self.layers or any(getattr(a, "ndim", 0) for a in args):
            return False
        factors = [a.detach() if isinstance(a, torch.Tensor) else a for a in args[:2]]
        return any(isinstance(a, int | float | torch.Tensor) and a == self.scale for a in factors)

    @property
    def scale(self) -> float:
        """The loss scale, 1 where there is none."""
        return float(self.scaler.get_scale()) if self.scaler is not None else 1.0

    def _step_hook(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Look before the update; behind its closure where the optimizer is given one."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._before_step()
            return None

        def watched() -> Any:
            loss = closure()
            self._before_step()
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _before_step(self) -> None:
        self._unwatch()
        if not self._on:
            return
        norms = [float(p.grad.float().norm()) for _, p in self._parameters() if p.grad is not None]
        self.final = sum(norm**2 for norm in norms) ** 0.5
        self.before = {name: p.detach().clone() for name, p in self._parameters()}

    def _after_step(self, *given: Any) -> None:
        if self._on:
            for place, parameter in self._parameters():
                layer, _, own = place.rpartition(".")
                moved = (parameter.detach().float() - self.before[place].float()).abs()
                share = moved / self.before[place].float().abs().clamp(min=1e-30)
                self.exponents.add("update", layer, own, share)
            self._write()
        self.step += 1
        self.clipped_from = None

    def _write(self) -> None:
        raw = sum(norm**2 for norm in self.raw.values()) ** 0.5
        line = {
            "step": self.step,
            "scale": self.scale,
            "norm": raw,
            "norm_at_step": self.final,
            "clip": self.clip,
            "norm_at_clip": self.clipped_from,
            **self.packer.packed(self.exponents.plain()),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.exponents, self.raw, self.before = Exponents(), {}, {}


@contextmanager
def record(
    module: Any,
    optimizer: Any,
    path: str | Path,
    every: int = 10,
    *,
    scaler: Any = None,
    clip: float | None = None,
) -> Iterator[Recorder]:
    """Record a training of `module` in the file `path` while the context lasts.

    A line of JSON for every `every`-th step of the `optimizer`: exponent histograms of what an op
    gives, of the gradients that flow and those of parameters, of the size of updates beside their
    parameters, and the norm of the gradient as it came and as it was applied. `scaler` is the
    GradScaler, `clip` the limit that gradients are clipped to, where there is one. A step that the
    scaler skips is no step.
    """
    recorder = Recorder(module, optimizer, Path(path), every, scaler, clip)
    recorder.path.write_text("", encoding="utf-8")
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()
