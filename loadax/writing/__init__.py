"""Writes rows to zarr stores: in parts, by any number of processes, complete once the manifest exists."""
