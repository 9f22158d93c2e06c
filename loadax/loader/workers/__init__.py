"""Worker processes: fresh interpreters that read pieces straight into memory that they share with the trainer's process."""
