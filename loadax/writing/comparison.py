"""How what something was made from is compared with what is there now."""

from typing import Any

FILES = "files"
"""The field of an identity that is unknown (None) to a run of several processes, each of which may have its own copy of
the data.
"""


def differs(known: Any, asked: Any, field: str) -> bool:
    """Whether a field of two identities differs; `FILES` is compared where both know it."""
    return bool(known != asked and not (field == FILES and (known is None or asked is None)))
