"""Passes that rewrite a graph: the policy pass and its companions."""
