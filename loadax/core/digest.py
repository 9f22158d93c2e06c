"""The digest of values that the states of runs store."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def digest_values(values: NDArray[Any]) -> str:
    """Hash of an array's values, as stored in the states of runs."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()[:16]
