"""Exporters: one file per framework a policy can be applied in."""
