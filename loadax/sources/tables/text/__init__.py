"""Text files of rows: JSON lines and CSV."""
