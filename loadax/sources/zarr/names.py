"""Names and numbers in zarr stores that loadax writes; `loadax.sources.zarr.manifest` reads their manifests."""

FINISHED = "loadax.json"
PARTIAL = "loadax.partial.json"
VERSION = 1
# Version of stores of ragged rows, see `loadax.sources.tokens.ragged`; loadax versions that only read 1 refuse it.
RAGGED = 2

# Array of the lengths of ragged rows, int64[rows, ragged leaves]; no leaf can have this name.
LENGTHS = "loadax.lengths"

# Array of ragged rows that are bare arrays; no leaf can have this name either.
BARE = "loadax.values"

# Blocks that a part of a ragged leaf may have: more than any has, since its length is known only in the end.
BLOCKS = 1 << 28

# Difference between the numbers of the first entries of two parts of a ragged leaf.
STRIDE = 1 << 40
