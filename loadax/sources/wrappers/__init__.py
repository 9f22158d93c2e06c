"""Sources over other sources."""
