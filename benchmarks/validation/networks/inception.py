"""Inception-v3 and -v4 on 299 x 299 images: modules of parallel chains of convolutions."""

from __future__ import annotations

from benchmarks.validation.layers.convolutions import classifier, normed
from benchmarks.validation.layers.layers import Layers
from benchmarks.validation.networks.network import Network, images

Chain = tuple[tuple[int, tuple[int, int]], ...]
"""Width and window of the convolutions of a chain."""

ROW, COLUMN, ONE, THREE = (1, 7), (7, 1), (1, 1), (3, 3)


def _chain(step: Layers, batch: int, c_in: int, side: int, chain: Chain, stride: int = 1) -> None:
    """Add a chain of normed convolutions, the last with the stride."""
    for i, (c_out, window) in enumerate(chain):
        last = i == len(chain) - 1
        normed(step, batch, c_in, c_out, (side, side), window, stride if last else 1)
        c_in = c_out


def _module(
    step: Layers, batch: int, c_in: int, side: int, chains: tuple[Chain, ...], pooled: int
) -> int:
    """Add parallel chains and a pool, with a convolution of `pooled` channels; return the width."""
    for chain in chains:
        step.branch(batch * c_in * side**2)
        _chain(step, batch, c_in, side, chain)
    step.pool(batch * c_in * side**2, batch * c_in * side**2)
    _chain(step, batch, c_in, side, ((pooled, ONE),))
    width = sum(chain[-1][0] for chain in chains) + pooled
    step.copy(batch * width * side**2)
    return width


def _reduction(
    step: Layers, batch: int, c_in: int, side: int, chains: tuple[Chain, ...]
) -> tuple[int, int]:
    """Add a module that halves the extent, windows without a margin; return width and extent."""
    for chain in chains:
        step.branch(batch * c_in * side**2)
        _chain(step, batch, c_in, side, chain[:-1])
        start = chain[-2][0] if len(chain) > 1 else c_in
        _chain(step, batch, start, side - 1, chain[-1:], 2)
    half = (side - 1) // 2
    step.pool(batch * c_in * side**2, batch * c_in * half**2)
    width = sum(chain[-1][0] for chain in chains) + c_in
    step.copy(batch * width * half**2)
    return width, half


def _split(step: Layers, batch: int, c_in: int, side: int, chain: Chain, width: int) -> None:
    """Add a chain that ends in two, of a row and of a column of three."""
    _chain(step, batch, c_in, side, chain)
    start = chain[-1][0]
    _chain(step, batch, start, side, ((width, (1, 3)),))
    step.branch(batch * start * side**2)
    _chain(step, batch, start, side, ((width, (3, 1)),))


def _stem(step: Layers, batch: int) -> None:
    """Add three convolutions without a margin: 149, 147 and 147 a side."""
    _chain(step, batch, 3, 298, ((32, THREE),), 2)
    _chain(step, batch, 32, 147, ((32, THREE), (64, THREE)))


def _inception_v3(step: Layers, batch: int) -> None:
    """Szegedy et al., 2015, with the auxiliary classifier, as in torchvision."""
    _stem(step, batch)
    step.pool(batch * 64 * 147**2, batch * 64 * 73**2)
    _chain(step, batch, 64, 73, ((80, ONE),))
    _chain(step, batch, 80, 71, ((192, THREE),))
    step.pool(batch * 192 * 71**2, batch * 192 * 35**2)
    width = 192
    for pooled in (32, 64, 64):
        chains: tuple[Chain, ...] = (
            ((64, ONE),),
            ((48, ONE), (64, (5, 5))),
            ((64, ONE), (96, THREE), (96, THREE)),
        )
        width = _module(step, batch, width, 35, chains, pooled)
    reduced = (((384, THREE),), ((64, ONE), (96, THREE), (96, THREE)))
    width, _ = _reduction(step, batch, width, 35, reduced)
    for c in (128, 160, 160, 192):
        chains = (
            ((192, ONE),),
            ((c, ONE), (c, ROW), (192, COLUMN)),
            ((c, ONE), (c, COLUMN), (c, ROW), (c, COLUMN), (192, ROW)),
        )
        width = _module(step, batch, width, 17, chains, 192)
    _chain(step, batch, width, 5, ((128, ONE),))
    normed(step, batch, 128, 768, (1, 1), 5)
    step.linear(batch, 768, 1000)
    step.cross_entropy(batch * 1000)
    narrow = (((192, ONE), (320, THREE)), ((192, ONE), (192, ROW), (192, COLUMN), (192, THREE)))
    width, _ = _reduction(step, batch, width, 17, narrow)
    for _ in range(2):
        _split(step, batch, width, 8, ((384, ONE),), 384)
        _split(step, batch, width, 8, ((448, ONE), (384, THREE)), 384)
        width = _module(step, batch, width, 8, (((320, ONE),),), 192) + 4 * 384
    step.dropout(batch * width)
    classifier(step, batch, (width, 1000))


def _inception_v4(step: Layers, batch: int) -> None:
    """Szegedy et al., 2016, as in timm."""
    _stem(step, batch)
    step.pool(batch * 64 * 147**2, batch * 64 * 73**2)
    _chain(step, batch, 64, 146, ((96, THREE),), 2)
    step.copy(batch * 160 * 73**2)
    for chain in (((64, ONE),), ((64, ONE), (64, ROW), (64, COLUMN))):
        _chain(step, batch, 160, 73, chain)
        _chain(step, batch, 64, 71, ((96, THREE),))
    step.copy(batch * 192 * 71**2)
    width, side = _reduction(step, batch, 192, 71, (((192, THREE),),))
    for _ in range(4):
        chains: tuple[Chain, ...] = (
            ((96, ONE),),
            ((64, ONE), (96, THREE)),
            ((64, ONE), (96, THREE), (96, THREE)),
        )
        width = _module(step, batch, width, side, chains, 96)
    reduced = (((384, THREE),), ((192, ONE), (224, THREE), (256, THREE)))
    width, side = _reduction(step, batch, width, side, reduced)
    for _ in range(7):
        chains = (
            ((384, ONE),),
            ((192, ONE), (224, ROW), (256, COLUMN)),
            ((192, ONE), (192, COLUMN), (224, ROW), (224, COLUMN), (256, ROW)),
        )
        width = _module(step, batch, width, side, chains, 128)
    narrow = (((192, ONE), (192, THREE)), ((256, ONE), (256, ROW), (320, COLUMN), (320, THREE)))
    width, side = _reduction(step, batch, width, side, narrow)
    for _ in range(3):
        _split(step, batch, width, side, ((384, ONE),), 256)
        _split(step, batch, width, side, ((384, ONE), (448, (3, 1)), (512, (1, 3))), 256)
        width = _module(step, batch, width, side, (((256, ONE),),), 256) + 4 * 256
    step.dropout(batch * width)
    classifier(step, batch, (width, 1000))


NETWORKS: dict[str, Network] = {
    "inception_v3": Network("inception_v3", "inception", images(_inception_v3)),
    "inception_v4": Network("inception_v4", "inception", images(_inception_v4)),
}
