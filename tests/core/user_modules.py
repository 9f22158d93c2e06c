"""Modules of a user's, written to files and imported as a new program would."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def imported(folder: Path, files: Mapping[str, str], name: str = "fp_script") -> Iterator[Any]:
    """The module of that name, among modules and packages of these texts, which are forgotten afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        path = folder / f"{file}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    before = {*sys.modules}
    sys.path.insert(0, str(folder))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a change within a second must count
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        for new in {*sys.modules} - before:
            if new.startswith("fp_"):
                del sys.modules[new]
