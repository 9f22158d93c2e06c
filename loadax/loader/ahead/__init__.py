"""Requests of the steps that come next to remote storage, before these are read."""
