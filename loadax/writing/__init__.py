"""Rows in, zarr stores out: written in parts, by any number of processes, and whole only when a manifest says so."""
