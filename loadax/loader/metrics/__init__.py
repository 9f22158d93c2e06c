"""What is counted while a loader runs."""
