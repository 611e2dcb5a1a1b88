"""The op catalogue: one file per family, one definition per op."""
