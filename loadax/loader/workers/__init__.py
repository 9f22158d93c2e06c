"""Worker processes: new interpreters that read pieces into shared memory."""
