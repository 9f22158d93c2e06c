"""Numbers in, numbers out: which rows stand where. No I/O, no JAX, no threads."""
