"""Programs on the devices: maps, cached datasets, gathers."""
