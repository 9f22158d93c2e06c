"""Rows of sparse matrices: SciPy's CSR, AnnData, and sparse groups of HDF5 and zarr."""
