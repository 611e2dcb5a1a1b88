"""Adadelta (arXiv 1212.5701), which is priced only."""

from __future__ import annotations

from policysearch.optimizers.optimizer import ADD, MULTIPLY, ROOT, SQUARE, Rule

DIVIDE_TWO, MULTIPLY_TWO = (2, 1), (2, 1)

ADADELTA = Rule(
    "adadelta",
    "step = grad * root mean square of steps / root mean square of grads; parameter - rate * step",
    "torch.optim.Adadelta; arXiv 1212.5701",
    states=("square_avg", "acc_delta"),
    reads=("epsilon", "weight_decay"),
    separate=(
        *(MULTIPLY, SQUARE, MULTIPLY, ROOT, MULTIPLY, ROOT),
        *(DIVIDE_TWO, MULTIPLY_TWO, MULTIPLY, SQUARE, ADD),
    ),
    aside=2,
)
