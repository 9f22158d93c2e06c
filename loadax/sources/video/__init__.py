"""Video files: rows are frames, and chunks are groups of pictures."""
