"""Names that loadax 0.1.0 gave to things that have other names in files today."""

import re
from typing import Any

# Fingerprints of both versions: of functions, and of what is made of them.
_BOTH = re.compile(r"([0-9a-f]{16})\+[0-9a-f]{16}\Z")


def former(known: Any) -> Any:
    """JSON with the fingerprints of loadax 0.1.0 in place of the present ones, as that version has kept it."""
    match known:
        case str():
            return _BOTH.sub(r"\1", known)
        case list():
            return [former(entry) for entry in known]
        case dict():
            return {name: former(entry) for name, entry in known.items()}
    return known
