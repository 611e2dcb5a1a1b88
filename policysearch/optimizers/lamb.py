"""LAMB (arXiv 1904.00962), which is priced only."""

from __future__ import annotations

from policysearch.optimizers.adam import MOMENTS
from policysearch.optimizers.optimizer import ADD, MULTIPLY, Rule

NORM, DIRECTION = (1, 0), (2, 1)

LAMB = Rule(
    "lamb",
    "adam's direction plus decay, per tensor as long as the parameter",
    "Apex FusedLAMB; arXiv 1904.00962",
    states=("m", "v"),
    reads=("beta1", "beta2", "epsilon", "weight_decay"),
    separate=(*MOMENTS, DIRECTION, ADD, NORM, NORM, MULTIPLY, ADD),
    # Apex's kernels: the norm of all gradients, both moments with the step, the parameters.
    fused=(NORM, (4, 3), (2, 1)),
    aside=2,
    norms=2,
)
