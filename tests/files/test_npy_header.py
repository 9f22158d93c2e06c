"""Headers of .npy files are read whatever other threads parse."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.lib.format import read_array_header_1_0

from loadax.files import npy_header
from loadax.files.npy_header import parse_npy


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_parser_that_other_threads_have_disturbed_is_asked_again(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.7 did so once in eight seconds of four threads; more than now and then, it is another error."""
    left = failures

    def disturbed(file: BytesIO) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise SystemError("AST constructor recursion depth mismatch (before=51, after=50)")
        return read_array_header_1_0(file)

    monkeypatch.setattr(npy_header, "read_array_header_1_0", disturbed)
    np.save(file := BytesIO(), np.arange(6).reshape(2, 3))
    if failures < 4:
        assert parse_npy(file.getvalue()).tolist() == [[0, 1, 2], [3, 4, 5]]
    else:
        with pytest.raises(SystemError, match="recursion depth"):
            parse_npy(file.getvalue())
