"""What a study has found: front, noise, ranking, trends and fidelity."""
