"""`.npy` files."""
