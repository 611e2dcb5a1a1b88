"""Runs an exported policy where it is meant to run, beside the emulator."""
