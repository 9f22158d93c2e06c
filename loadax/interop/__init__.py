"""What goes out: to progress bars and metrics, and to Grain."""
