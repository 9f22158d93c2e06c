"""What is told while a loader runs."""
