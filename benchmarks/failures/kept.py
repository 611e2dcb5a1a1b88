"""The nets of `studies/failures/` as torch exported them, for machines without it.

    python -m benchmarks.failures.kept

writes a file a case to tests/data/failures: the graph as plain data, and the arrays it starts from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.graph import FloatArray
from policysearch.nn.kept import KeptModel, kept_model, model_from_kept

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "failures"


@dataclass(frozen=True, eq=False, repr=False)
class KeptNet(KeptModel):
    """A kept graph with its arrays, the `initial` ones and the `constants`: it is trained, too."""

    initial: Mapping[str, FloatArray] = field(default_factory=dict)
    constants: Mapping[str, FloatArray] = field(default_factory=dict)

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        return dict(self.initial)


def kept_net(name: str) -> KeptNet:
    """Return the net of the case of this name, without torch."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    model = model_from_kept(json.loads(arrays.pop("graph:").tobytes()))
    values: dict[str, Any] = {row.name: getattr(model, row.name) for row in fields(KeptModel)}
    return KeptNet(**values, initial=_of("initial", arrays), constants=_of("constants", arrays))


def _of(part: str, arrays: Mapping[str, Any]) -> dict[str, FloatArray]:
    named = ((key.split(":", 1), array) for key, array in arrays.items())
    return {name: array for (whose, name), array in named if whose == part}


def main() -> None:
    """Keep the nets of all cases."""
    from benchmarks.failures.zoo import names, net_of

    FOLDER.mkdir(exist_ok=True)
    for name in names():
        net = net_of(name)
        parts = {"initial": net.init(np.random.default_rng(0)), "constants": net.constants}
        arrays: dict[str, Any] = {
            f"{part}:{k}": v for part in parts for k, v in parts[part].items()
        }
        graph = json.dumps(kept_model(net, name)).encode()
        arrays["graph:"] = np.frombuffer(graph, np.uint8)
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
