"""TensorStore arrays and Zarr groups."""
