"""The Pareto front as a table and as plots."""
