"""How long tests wait for what must come."""

HANG = 120.0
"""Seconds after which something that should have happened counts as hanging. A limit, never a measurement: on an idle machine, what it
guards takes a few seconds at most, and it must hold on a machine that is many times as busy."""
