"""Integrations: progress bars, metrics and trainers."""
