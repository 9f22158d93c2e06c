"""This host's shard of a batch, and the assembly of rows into it."""
