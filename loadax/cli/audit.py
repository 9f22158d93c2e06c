"""`loadax audit`: merges the certificates of each run's processes, and compares the runs."""

import argparse
from typing import Any

from loadax.cli.options import add_command
from loadax.cli.terminal import show
from loadax.core.formatting import count_text
from loadax.errors import ArgumentError
from loadax.loader.inspection.certificate import Certificate

_DIFFERS = 1  # exit code; not that of an error, since the check itself succeeded
_EXAMPLES = """\
on every host:
  loader.certificate().save(f"before/{jax.process_index()}.json")
example:
  loadax audit before/*.json after/*.json && echo same

Certificates belong to one run if they have its name: "64 processes", or the name passed to certificate(run="…").

Exit code: 0 if every run is complete and all are equal, 1 if not, 2 if a file is not a certificate.
"""


def add(commands: Any) -> None:
    """Adds `audit` to the commands."""
    command = add_command(
        commands,
        "audit",
        run,
        "compare the records that runs read, by the certificates of their processes",
        "Merges the certificates of each run's processes, reports parts of batches that no certificate covers, "
        "and checks that the runs read the same records in the same batches. Reads only the certificates.",
        _EXAMPLES,
    )
    command.add_argument(
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
        show(f"{name}: {_summary(merged, len(others) + 1)}")
        show(*(f"{name}: MISSING: no certificate has {gap}" for gap in missing))
        whole_runs += [merged] if not missing else []
    alike = len(whole_runs) == len(parts)
    for other in whole_runs[1:]:
        first_run = whole_runs[0]
        contents = first_run.contents and other.contents
        difference = _difference(first_run, other, contents)
        compared = "the same batches, bit for bit" if contents else "the same records in the same batches"
        answer = "yes" if difference is None else f"NO: {difference}"
        show(f"{first_run.run} and {other.run}: {compared}: {answer}")
        alike &= difference is None
    return 0 if alike else _DIFFERS


def _summary(run: Certificate, files: int) -> str:
    steps = " and ".join(f"{start} to {stop - 1}" for start, stop in run.steps)
    copies = sorted({span.copies for span in run.spans})
    often = f", each part by {' or '.join(map(str, copies))} processes" if copies != [1] else ""
    read = "with contents" if run.contents else "without contents"
    certificates, records = count_text(files, "certificate"), count_text(run.rows, "record")
    return f"{certificates}, steps {steps}, {records} {read}{often}; digest {run.digest}"


def _difference(one: Certificate, other: Certificate, contents: bool) -> str | None:
    """Text about how two runs differ; None if they don't."""
    left, right = (run.total if contents else run.total._replace(contents=0) for run in (one, other))
    if left == right and one.steps == other.steps:
        return None
    steps = "; they cover different steps" if one.steps != other.steps else ""
    records = "the same" if left.records == right.records else "different, too"
    return f"{_first_step(one, other, contents)}{steps}; the records, regardless of their batches, are {records}"


def _first_step(one: Certificate, other: Certificate, contents: bool) -> str:
    left, right = one.per_step(), other.per_step()
    if left is None or right is None:
        return "certificates made with per_step=True would show the first step that differs"
    for step in sorted({*left, *right}):
        if step not in left or step not in right:
            return f"only {(one if step in left else other).run} has step {step}"
        if left[step].visits != right[step].visits:
            return f"step {step} is the first that differs"
        if contents and left[step].contents != right[step].contents:
            return f"step {step} is the first whose contents differ, with the same records"
    return "every single step is the same"
