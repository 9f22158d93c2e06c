"""Helpers for all other parts. No I/O, no JAX, and no imports from loadax except its errors and protocols."""
