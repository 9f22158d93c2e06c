"""The record of zarr stores."""

from loadax.sources.format import Format

# Names of files, one of which is in the folder of every zarr array and group.
MARKERS = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")

FORMAT = Format(
    "from_zarr",
    "a zarr array or group (a folder, a .zip file or a URL)",
    r"(?i)\.zarr$|^(zarr\.json|\.z(array|group|metadata))$",
    opener="loadax.sources.tokens.ragged:open_zarr",
    lacks="zarr.json",
    options=("columns",),
    columns="variables",
)
