"""Files of any kind, one a row."""
