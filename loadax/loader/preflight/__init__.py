"""Preflight: reads, maps and checks the rows of the planned steps before a run."""
