"""Metrics of a running loader."""
