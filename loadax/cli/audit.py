"""`loadax audit`: compare the rows that runs read, by the certificates of their processes.

Merges the certificates of each run's processes, reports parts of batches that no certificate covers, and checks that
the runs read the same rows in the same batches. Reads only the certificates.

on every host:
  loader.certificate().save(f"before/{jax.process_index()}.json")
example:
  loadax audit before/*.json after/*.json && echo same

Certificates belong to one run if they have its name: "64 processes", or the name passed to certificate(run="…").

Exit code: 0 if every run is complete and all are equal, 1 if not, 2 if a file is not a certificate.
"""

import argparse
from typing import Any

from loadax.cli.options import add_command
from loadax.cli.terminal import show
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.loader.inspection.certificate import Certificate, steps_text

_DIFFERS = 1  # exit code; not that of an error, since the check itself succeeded


def add(commands: Any) -> None:
    """Adds `audit` to the commands."""
    add_command(commands, run).add_argument(
        "certificates", metavar="CERTIFICATE", nargs="+", help="files that loader.certificate().save(path) wrote"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 1 if certificates are missing or runs differ.

    Raises:
        LoadaxError: When a file is not a certificate.
    """
    parts: dict[str, list[Certificate]] = {}
    for path in options.certificates:
        part = Certificate.load(path)
        parts.setdefault(part.run, []).append(part)
    whole_runs: list[Certificate] = []
    for name, (first, *others) in parts.items():
        try:
            merged = first.merge(*others)
        except ArgumentError as error:
            show(f"{name}: NOT ONE RUN: {error}; if these are several runs, name each with certificate(run=…)")
            continue
        missing = merged.missing()
        certificates, records = count_text(len(others) + 1, "certificate"), count_text(merged.rows, "record")
        show(f"{name}: {certificates}, {steps_text(merged)}, {records}; digest {merged.digest}")
        show(*(f"{name}: MISSING: no certificate has {gap}" for gap in missing))
        whole_runs += [merged] if not missing else []
    alike = len(whole_runs) == len(parts)
    for other in whole_runs[1:]:
        first_run = whole_runs[0]
        difference = first_run.first_difference(other)
        answer = "yes" if difference is None else f"NO: {difference}"
        show(f"{first_run.run} and {other.run}: the same rows in the same batches: {answer}")
        alike &= difference is None
    return 0 if alike else _DIFFERS
