"""What goes out: to progress bars and to metrics."""
