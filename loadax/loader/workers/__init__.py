"""Worker processes: fresh interpreters that read pieces into memory shared with the training process."""
