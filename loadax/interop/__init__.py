"""Integrations: progress bars, metrics, Grain."""
