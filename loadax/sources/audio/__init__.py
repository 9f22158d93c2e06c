"""Audio files: rows are clips of equal length."""
