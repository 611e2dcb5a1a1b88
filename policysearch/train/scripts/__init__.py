"""The user's own training script as a task: what its loaders, steps and optimizers are."""
