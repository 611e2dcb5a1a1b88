"""The page of what is registered: optimizers, schedules, loss-scale rules, samplers.

`python -m policysearch.report.registries` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policysearch.optimizers.optimizer import Rule as OptimizerRule
from policysearch.optimizers.optimizer import rules
from policysearch.policy.loss_scale import RULES
from policysearch.policy.loss_scale import Rule as ScaleRule
from policysearch.study.optuna_samplers import OWN, STOCK
from policysearch.train.schedule import KINDS, REFUSED

OPTIMIZERS = """# What is registered

This page is made from the code by `make docs`.

## Optimizers

`optimizer` of a study's task. States begin at zero, in the shape of their parameter but for those
of rows and columns; after "else" come those of parameters that are no matrices. Bytes are what the
update of a float32 parameter reads and writes in one kernel, `-` where no library has one; passes
are its kernels op by op. Without a class of torch, `verify` refuses it; what is priced only is
listed by `profile --optimizers` and trains nowhere."""

SCHEDULES = f"""## Learning-rate schedules

`kind` of a task's schedule: classes of torch 2.13's `torch/optim/lr_scheduler.py` and, after "hf.",
what Hugging Face's Trainer calls so, functions of transformers 5.23's `optimization.py`. The rates
are theirs to the last bit of float32. Fields are those of `[task.schedule]` in docs/study-file.md;
what a kind does not read is refused, but for `constant`, `step` and `cosine` with each other's.
{" and ".join(f"`{name}`" for name in REFUSED)} are refused: they follow losses, which
differ from policy to policy, so that policies would be compared under different recipes."""

LOSS_SCALES = """## Loss-scale rules

`rule` of a policy's loss scale. An overflow multiplies a dynamic scale by `backoff_factor` and
skips the step (of a hysteresis of n, the first n - 1 skip it alone); `growth_interval` clean steps
in a row multiply it by `growth_factor`. Floor and cap hold where the policy has none. A scale that
would grow to infinity is kept by some."""

SAMPLERS = """## Samplers

`sampler` of a study."""


def registries_page() -> str:
    """Return the page as Markdown."""
    samplers = [(OWN, "knows prices and learns the loss gap alone (docs/searcher.md)", "-")]
    samplers += [(row.name, row.about, row.needs or "-") for row in STOCK.values()]
    blocks = [
        OPTIMIZERS,
        _table(
            "name update states settings decay torch bytes passes source",
            map(_optimizer, rules().values()),
        ),
        SCHEDULES,
        _table(
            "name is fields",
            (
                (name, f"`{row.source}`", ", ".join(f"`{field}`" for field in row.reads))
                for name, row in KINDS.items()
            ),
        ),
        LOSS_SCALES,
        _table(
            "name kinds floor cap at_infinity first_scale gives_up_after factors hysteresis grows "
            "source",
            (_loss_scale(name, row) for name, row in RULES.items()),
        ),
        SAMPLERS,
        _table("name what needs", samplers),
    ]
    return "\n\n".join(blocks)


def _table(titles: str, rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose first column is set as code."""
    names = [title.replace("_", " ") for title in titles.split()]
    lines = [names, ["---"] * len(names)]
    lines += [[f"`{name}`", *map(str, others)] for name, *others in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _optimizer(row: OptimizerRule) -> tuple[str, ...]:
    decay = "decoupled" if row.decoupled else "in the gradient"
    classes = dict.fromkeys(f"`{part.torch.name}`" for part in row.parts if part.torch)
    torch = " else ".join(classes) or "-"
    return (
        row.name,
        row.formula,
        " else ".join(", ".join(part.states) or "-" for part in row.parts),
        ", ".join(f"`{name}`" for name in row.reads),
        decay if row.emit else "priced only",
        torch,
        str(4 * row.fused_tensors) if row.fused else "-",
        str(len(row.separate)),
        row.source,
    )


def _loss_scale(name: str, row: ScaleRule) -> tuple[str, ...]:
    kinds = ["dynamic"] * row.moves + ["fixed" if row.skips_fixed else "fixed (skips nothing)"]
    return (
        name,
        ", ".join(kinds),
        _number(row.floor),
        _number(row.cap),
        "kept" if row.stays_finite else "reached",
        f"at least {_number(row.lowest_init)}" if row.lowest_init else "any",
        _number(row.most_overflows),
        ", ".join(map(_number, row.factors)) if row.factors else "any",
        f"{row.hysteresis}{', consecutive' * row.consecutive}",
        "one step later" if row.grows_later else "after the interval",
        row.source,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


if __name__ == "__main__":
    print(registries_page())
