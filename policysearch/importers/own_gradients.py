"""What a module does to gradients itself, which its forward pass, all that is read, hides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from policysearch.values import InputError

REMEDY = "expected the gradients that torch derives; leave it out"


def check_hooks(module: Any) -> None:
    """Raise InputError where a parameter or a part of the module has a hook on gradients."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InputError(f"parameter {name}: a hook on its gradient; {REMEDY}")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise InputError(f"module {name or type(part).__name__}: a backward hook; {REMEDY}")


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """While it is entered, what a forward pass does to gradients itself raises InputError."""
    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(_checked_apply)),
        mock.patch.object(torch.Tensor, "register_hook", _refused_hook),
    ):
        yield


_apply: Callable[..., Any] = torch.autograd.Function.__dict__["apply"].__func__


def _checked_apply(function: Any, *arguments: Any, **options: Any) -> Any:
    """Apply a function of torch's own, which has the gradient of what it computes."""
    if not function.__module__.startswith("torch."):
        raise InputError(f"autograd.Function {function.__name__}: a gradient of its own; {REMEDY}")
    return _apply(function, *arguments, **options)


def _refused_hook(value: Any, hook: Any) -> Any:
    raise InputError(f"Tensor.register_hook in forward: {REMEDY}")
