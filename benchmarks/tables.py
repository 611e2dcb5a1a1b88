"""Price tables beside exact prices: how long a table takes to make and to read, and how far off.

    python -m benchmarks.tables

100 dense layers with five formats each, then the shipped nets. Per net: exact prices and CPU
seconds the table took, CPU seconds for 100,000 policies, the largest errors of step time and peak
memory over random policies that made no part of it, and how many of the 100 fastest by the table
are among the 100 fastest of those when they and the next 100 are priced exactly. Exits with 1
where the first net takes more than 10 s to make or 2 s to read, or is more than 2 % off.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import machine, parser, pin_one_thread, show, write_csv
from policysearch.cost.tables import Drawn
from policysearch.objective.objective import Objective
from policysearch.search.price_table import format_table, formats_of
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.train.tasks import Task

FORMATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
POLICIES = 100_000
BEST = 100
TASKS = {
    "100 dense layers": Task(model="mlp", data="digits", widths=(512,) * 99, batch_size=4096),
    "mlp": Task(model="mlp", data="digits", widths=(256,) * 3, batch_size=4096),
    "lenet5": Task(model="lenet5", data="digits32", batch_size=4096),
    "resnet": Task(model="resnet", data="digits", batch_size=1024),
    "transformer": Task(model="transformer", data="digits", batch_size=1024),
}
MAKE_SECONDS, READ_SECONDS, ERROR = 10.0, 2.0, 0.02
"""What the first net is held to."""
COLUMNS = ("net", "prices", "make_seconds", "read_seconds", "time_error", "memory_error", "kept")


def best_kept(
    objective: Objective, space: Space, choices: Drawn, seconds: NDArray[np.float64]
) -> int:
    """Return how many of the table's BEST are among the BEST of twice as many, priced exactly."""
    first = np.argsort(seconds, kind="stable")[: 2 * BEST]
    policies = [space.policy(formats_of(space, tuple(row))) for row in choices[first]]
    exact = [objective.step_price(policy).time.step_seconds for policy in policies]
    return int((np.argsort(exact, kind="stable")[:BEST] < BEST).sum())


def measured(task: Task, device: str, stack: str) -> list[float]:
    """Return one row of the table, from COLUMNS[1] on."""
    objective = Objective(task, device, stack)
    space = make_space(SpaceSection(formats=FORMATS), objective.model)
    start = time.process_time()
    table = format_table(objective, space, {}, np.random.default_rng(0))
    made = time.process_time()
    drawn = np.random.default_rng(1).integers(0, table.options, (POLICIES, len(table.options)))
    before = time.process_time()
    seconds, _ = table.priced(drawn)
    read = time.process_time() - before
    kept = best_kept(objective, space, drawn, seconds)
    return [table.prices, made - start, read, table.time_error, table.memory_error, kept]


def main() -> int:
    """Print the table; return the exit code."""
    options = parser(__doc__)
    options.add_argument("--device", default="H100-SXM5")
    options.add_argument("--stack", default="torch.compile")
    options.add_argument("--nets", nargs="+", choices=TASKS, default=list(TASKS))
    given = options.parse_args()
    pin_one_thread()
    rows = {net: measured(TASKS[net], given.device, given.stack) for net in given.nets}
    lines = [[net, *row] for net, row in rows.items()]
    show(f"Price tables, {given.device}, {given.stack}", COLUMNS, lines)
    print(machine())
    write_csv(given.out / "tables.csv", COLUMNS, lines)
    _, made, read, time_error, memory_error, _ = rows.get(next(iter(TASKS)), [0.0] * 6)
    good = made <= MAKE_SECONDS and read <= READ_SECONDS and max(time_error, memory_error) <= ERROR
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
