"""The searcher alone: surrogate, acquisition, candidates and prices, on plain values."""
