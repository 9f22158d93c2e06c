"""Saves a report as a page or as data."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from loadax.core.arguments import path as checked_path
from loadax.errors import ArgumentError
from loadax.files.paths import local_path, writing_file
from loadax.loader.reports.run_record import run_record

if TYPE_CHECKING:
    from loadax.loader.reports.bottleneck import Report


def save_report(report: "Report", path: str | os.PathLike[str]) -> None:
    """Saves a report; see `Report.save`."""
    target = local_path(checked_path("path", path, "the name of a .html file"))
    if target is None or target.suffix.lower() not in (".html", ".json"):
        raise ArgumentError(
            f"path={os.fspath(path)!r}: name a local file, run.html for a page or "
            "run.json for the data"
        )
    if report.snapshot is None:
        raise ArgumentError(
            "this report was made of statistics alone, so there is no run to show; "
            "save the report of an iterator: batches.report().save('run.html')"
        )
    record = run_record(report, report.snapshot)
    if target.suffix.lower() == ".json":
        with writing_file(path):
            record.write(target)
        return
    from loadax.loader.reports.run_page import run_page

    page = run_page({"": record})
    with writing_file(path):
        target.write_text(page, encoding="utf-8")


def framed_report(report: "Report") -> str | None:
    """The page as a frame of a notebook; None if it can't be drawn."""
    if report.snapshot is None or find_spec("vl_convert") is None:
        return None
    from loadax.loader.reports.run_page import framed, run_page

    return framed(run_page({"": run_record(report, report.snapshot)}))
