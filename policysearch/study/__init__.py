"""Studies: specified, run, recorded and read back; all that knows optuna."""
