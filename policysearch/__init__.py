"""Pareto-optimal mixed-precision training policies, found on a bit-exact numpy emulator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policysearch.api import *  # noqa: F403

__all__ = (  # noqa: F405
    "CostSection",
    "Dataset",
    "InputError",
    "LayerPolicy",
    "LossScale",
    "Model",
    "Policy",
    "Results",
    "Script",
    "StudySpec",
    "Task",
    "Trial",
    "as_exported",
    "carry_study",
    "confirm_study",
    "explain",
    "explain_passes",
    "export_policy",
    "from_lightning",
    "from_loader",
    "from_torch",
    "from_trainer",
    "load_results",
    "load_study",
    "pick",
    "preflight",
    "preset",
    "record",
    "repair_study",
    "run_study",
    "study_of",
    "try_policy",
    "uniform_layer",
    "verify_policy",
)


# The API is imported when one of its names is first asked for: a training process needs neither
# Optuna nor plots, and the command line loads what each command needs.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version(__name__)
    if name in __all__:
        return getattr(importlib.import_module("policysearch.api"), name)
    raise AttributeError(f"module 'policysearch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
