"""What runs on accelerators: maps, cached datasets, gathers."""
