"""Passes over all rows or files: cut into parts that are kept, shared by processes, and run on executors."""
