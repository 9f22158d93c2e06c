"""The record of `.npy` files."""

from loadax.files import magic
from loadax.sources.format import Format

FORMAT = Format(
    "from_npy",
    "a .npy file",
    r"(?i)\.npy$",
    magic.NPY,
    "loadax.sources.npy.source:open_npy",
    lacks=".npy file in it",
    options=("cache",),
)
