"""The search space, the study and the only code that knows optuna."""
