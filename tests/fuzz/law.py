"""The law: a changed file opens and its rows can be read, or an error of loadax names it.

Soon, and in little memory.
"""

import logging
import resource
import shutil
import time
import warnings
from pathlib import Path
from random import Random
from typing import final

from loadax.core import memory
from loadax.core.tree import flatten
from loadax.errors import LoadaxError
from tests.fuzz.formats import FORMATS, SEED, forge_index

ROWS = 40
"""Rows of a dataset that are read at most; what is changed may claim to have any number."""

CPU_SECONDS = 5.0
"""A case takes a few milliseconds."""

MEMORY = 4 << 30
"""Bytes of address space that may be added to what a process has after its imports: files here have a few KB."""


@final
class Cases:
    """The cases of one format, in a folder of their own.

    Args:
        name: Format.
        seed: Seed of all that is random.
        folder: Folder to work in.
    """

    def __init__(self, name: str, seed: int, folder: Path):
        self.name, self.format, self._seed = name, FORMATS[name], seed
        self._valid, self._work = folder / "valid", folder / "work"
        self._valid.mkdir(parents=True)
        self.format.make(self._valid)
        self.check(self._valid)

    def change(self, number: int) -> Path:
        """Makes the folder of a case: valid files, one of them changed. Returns the folder."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.copytree(self._valid, self._work)
        random = Random(f"{self.name} {self._seed} {number}")
        path = random.choice(sorted(path for path in self._work.glob(self.format.files) if path.is_file()))
        content = path.read_bytes()
        if self.format.forged and random.random() < 0.7:
            described = random.choice(sorted(self._work.glob("seed.index/*.json")))
            forge_index(described.read_bytes(), random, self._work)
        else:
            path.unlink()  # the old content may be mapped
            path.write_bytes(self.format.mutate(content, random))
        return self._work

    def run(self, number: int) -> str | None:
        """Runs a case. Returns "opened", or the error of loadax.

        Raises:
            AssertionError: If the law is broken, with the reason.
        """
        return self.check(self.change(number))

    def check(self, folder: Path) -> str:
        """Reads the files of a folder."""
        began = time.process_time()
        try:
            dataset = self.format.read(folder)
            if dataset is not None:
                _ = dataset.spec
                for row in range(0, len(dataset), max(1, len(dataset) // ROWS)):
                    flatten(dataset[row])
            told = "opened"
        except LoadaxError as error:
            told = "\n".join([str(error), *getattr(error, "__notes__", ())])
            if SEED not in told:
                raise AssertionError(f"an error that does not name the file: {type(error).__name__}: {told}") from error
        except Exception as error:
            raise AssertionError(f"an error that is not of loadax: {type(error).__name__}: {error}") from error
        took = time.process_time() - began
        assert took < CPU_SECONDS, f"{took:.1f} s of CPU"
        return told


def limit_memory() -> None:
    """Makes huge allocations fail in this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    vars(memory)["machine_memory"] = lambda: MEMORY // 4  # so that what fits there fits here
    logging.getLogger("loadax").setLevel(logging.ERROR)  # indices that are not used
    warnings.simplefilter("ignore")
