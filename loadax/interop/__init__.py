"""Integrations: progress bars and metrics."""
