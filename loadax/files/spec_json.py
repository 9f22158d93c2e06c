"""JSON of TensorStore's specs, converted once for each distinct spec."""

from copy import deepcopy
from typing import Any

import tensorstore as ts

# by the text of the spec
_known: dict[str, Any] = {}
MOST = 1024
# characters; specs of arrays in memory have all their numbers
_LONGEST = 20_000


def spec_json(spec: ts.Spec | ts.KvStore.Spec) -> Any:
    """JSON of a spec, as of `spec.to_json()`; the caller may change it.

    TensorStore 0.1.86 never frees what `to_json` returns: 3 kB a call, and each store
    that is opened needs several. So equal specs are converted once, and copied.
    """
    text = repr(spec)
    if len(text) > _LONGEST:
        return spec.to_json()
    known = _known.get(text)
    if known is None:
        known = spec.to_json()
        if len(_known) >= MOST:
            _known.clear()
        _known[text] = known
    return deepcopy(known)
