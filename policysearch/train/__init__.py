"""Data sets, loss scaling, optimizers and the trainer."""
