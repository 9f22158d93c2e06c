"""Which row is at which position, by arithmetic alone. No I/O, no JAX, no threads."""
