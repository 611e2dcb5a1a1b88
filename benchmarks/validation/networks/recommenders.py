"""Recommenders: embeddings of many rows, and narrow products over very large batches."""

from __future__ import annotations

from benchmarks.validation.layers.convolutions import update
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

USERS, ITEMS = 138493, 26744
"""Rows of MovieLens-20M."""


DATA_BYTES = 5 * 19.9e6 * (8 + 8 + 4 + 8)
"""MovieLens-20M with four negatives for each rating: user, item, label and place in the shuffle,
all on the device in the published script."""


def _ncf(step: Layers, batch: int) -> None:
    """NeuMF: 64 factors, and an MLP of 256, 256, 128 and 64 (He et al., 2017)."""
    for rows, width in ((USERS, 64), (ITEMS, 64), (USERS, 128), (ITEMS, 128)):
        step.embedding(batch, width, rows)
    step.elementwise(batch * 64, (2, 1), 5)
    step.copy(batch * 256)
    for n_in, n_out in ((256, 256), (256, 128), (128, 64)):
        step.linear(batch, n_in, n_out)
        step.relu(batch * n_out)
        step.dropout(batch * n_out)
    step.copy(batch * 128)
    step.linear(batch, 128, 1)
    step.cross_entropy(batch)
    update(step, "adam")


def _dlrm(step: Layers, batch: int) -> None:
    """26 tables of 128 columns, updated by rows; MLPs as in the published benchmark."""
    step.repeat(26)
    step.embedding(batch, 128, 0)
    step.repeat(1)
    for n_in, n_out in ((13, 512), (512, 256), (256, 128)):
        step.linear(batch, n_in, n_out)
        step.relu(batch * n_out)
    step.copy(batch * 27 * 128)
    step.product(batch, 27, 27, 128)
    step.copy(batch * 480)
    for n_in, n_out in ((480, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)):
        step.linear(batch, n_in, n_out)
        step.relu(batch * n_out)
    step.cross_entropy(batch)
    update(step, "momentum")


NETWORKS: dict[str, Network] = {
    "ncf": Network("ncf", "ncf", images(_ncf), data_bytes=DATA_BYTES, fused_update=("torch",)),
    "dlrm": Network("dlrm", "dlrm", images(_dlrm)),
}
