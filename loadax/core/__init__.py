"""What all other parts lean on: no I/O, no JAX, and nothing of loadax but its errors."""
