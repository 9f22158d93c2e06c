"""Checks a loader before a run: source and maps, splits, digest, values, and whether training would wait.

    python check_loader.py train:make_loader --validation train:make_validation --steps 100

Each name is a function without arguments, in a module of this folder. The exit code is 1 if a check has failed.
"""

import argparse
import importlib
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import loadax
from loadax.testing import check_source, disjoint


def main() -> int:
    """Runs the checks. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loader", metavar="MODULE:FUNCTION", help="function that returns a loadax.Dataloader")
    parser.add_argument("--validation", metavar="MODULE:FUNCTION", help="function that returns the validation dataset")
    parser.add_argument("--steps", type=int, default=100, help="number of first steps to read (default: 100)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: pass 1 or more")
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = function_of(options.loader)
        validation = function_of(options.validation or options.loader)
    except (ImportError, AttributeError, ValueError) as error:
        parser.error(f"{error}; pass MODULE:FUNCTION, such as train:make_loader, of a module of this folder")
    loader = make()
    if not isinstance(loader, loadax.Dataloader):
        parser.error(f"{options.loader} returns {loader!r}; return a loadax.Dataloader")
    # of a loader that is infinite, all that are asked for
    steps = range(min(options.steps, operator.length_hint(loader, options.steps)))
    try:
        print(loader.explain())
    except loadax.errors.StreamError:
        print("rows of a stream are known only when they are read: no other check than the report")
        return int(not passes("report", lambda: run(loader, steps)))
    checks: dict[str, Callable[[], object]] = {
        "source, maps and runs": lambda: check_source(loader.dataset),
        "digest": lambda: equal_digests(loader, make(), steps),
        "preflight": lambda: preflight(loader, steps),
        "report": lambda: run(loader, steps),
    }
    if options.validation:
        checks["no shared row"] = lambda: disjoint(loader.dataset, validation())
    failed = [name for name, check in checks.items() if not passes(name, check)]
    return int(bool(failed))


def function_of(name: str) -> Any:
    """The function that `MODULE:FUNCTION` names."""
    module, separator, function = name.partition(":")
    if not separator:
        raise ValueError(f"{name} has no colon")
    return getattr(importlib.import_module(module), function)


def passes(name: str, check: Callable[[], object]) -> bool:
    """Runs a check, and says what came of it."""
    try:
        text = check()
    except Exception as error:  # noqa: BLE001 - the functions are the user's, and can raise anything
        print(f"FAILED {name}: {type(error).__name__}: {error}")
        return False
    print(f"passed {name}" + (f": {text}" if text else ""))
    return True


def equal_digests(loader: Any, other: Any, steps: range) -> str:
    """The digest of the steps, which a second loader must have too."""
    digest: str = loader.digest(steps)
    assert digest == other.digest(steps), "a second call of the function makes a loader that reads other rows"
    return digest


def preflight(loader: Any, steps: range) -> None:
    """Reads, maps and checks the rows of the steps."""
    found = loader.preflight(steps)
    assert found.ok, str(found)


def run(loader: Any, steps: range) -> loadax.Report:
    """Takes the batches of the steps, and reports what limits the loader."""
    with loader.iterate() as batches:
        for _, batch in zip(steps, batches, strict=False):
            jax.block_until_ready(batch)
        report: loadax.Report = batches.report()
    return report


if __name__ == "__main__":
    sys.exit(main())
