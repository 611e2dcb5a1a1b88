"""Networks that are recorded as graphs and have no layer list."""

from __future__ import annotations

from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network
from policysearch.values import InputError


def _no_list(step: Layers, batch: int, length: int) -> None:
    raise InputError("no layer list; expected to be priced by its record")


RECORDED_ONLY: dict[str, Network] = {
    row.name: row
    for row in (
        Network("nnunet-2d", "unet2d", _no_list, compiled=("tensorflow",)),
        # its script compiles under mixed precision alone
        Network("electra-base-squad", "electra", _no_list, compiled_mixed=("tensorflow",)),
        Network("wide-and-deep", "wide-and-deep", _no_list),
        Network("vae-cf", "vae-cf", _no_list),
    )
}
