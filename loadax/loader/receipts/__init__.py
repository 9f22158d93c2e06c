"""Receipts: what a run has read until a step, and states that are bound to the contents of files."""
