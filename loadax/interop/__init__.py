"""Integrations: progress bars, metrics, Grain and trainers."""
