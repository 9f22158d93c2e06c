"""The record of `.npy` files."""

from loadax.sources.format import Format

FORMAT = Format(
    "from_npy", "a .npy file", r"(?i)\.npy$", rb"\x93NUMPY", "loadax.sources.npy.source:open_npy", options=("cache",)
)
