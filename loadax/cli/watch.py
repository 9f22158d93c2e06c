"""`loadax watch`: follows a running job by the endpoint that `loadax.interop.prometheus.serve` opens."""

import argparse
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from loadax.cli.options import add_command, positive
from loadax.core.formatting import percent_text, size_text
from loadax.errors import ArgumentError, UnsupportedError
from loadax.redaction import redact

_LONGEST = 16 << 20  # bytes of an answer that are read
_TIMEOUT = 10.0  # seconds
_STAGES = ("read", "transform", "assemble", "place")
_EXAMPLES = """\
examples:
  loadax watch http://127.0.0.1:9100/metrics
      in the job: loadax.interop.prometheus.serve(loader, port=9100)
  loadax watch localhost:9100 --seconds 30 --count 120 >> job.log

Each line is about the seconds since the line before it; a line on a terminal replaces the one before it.
"""


def add(commands: Any) -> None:
    """Adds `watch` to the commands."""
    command = add_command(
        commands,
        "watch",
        run,
        "follow a running job by its Prometheus endpoint",
        "Shows the step, rows per second, how long training waited for data, and what the loader is busy with.",
        _EXAMPLES,
    )
    command.add_argument("url", metavar="URL", help="URL of the endpoint, or HOST:PORT")
    command.add_argument("--seconds", metavar="S", type=positive, default=2.0, help="time between lines (default: 2)")
    command.add_argument("--count", metavar="N", type=int, help="number of lines (default: until Ctrl-C)")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ArgumentError: When nothing answers at the URL, or something else than a job of loadax.
    """
    url = options.url if "://" in options.url else f"http://{options.url}/metrics"
    if not url.startswith(("http://", "https://")):
        raise ArgumentError(
            f"{redact(url)} is not an http URL; pass the url of loadax.interop.prometheus.serve(loader)"
        )
    before, then = scrape(url), time.monotonic()
    with _one_line() as show:
        shown = 0
        while options.count is None or shown < options.count:
            time.sleep(options.seconds)
            now, moment = scrape(url), time.monotonic()
            show(status_line(before, now, moment - then))
            before, then, shown = now, moment, shown + 1
    return 0


def scrape(url: str) -> dict[str, float]:
    """The metrics of loadax at a URL, by name, those of stages by stage.

    Raises:
        ArgumentError: When nothing answers there, or something else than a job of loadax.
        UnsupportedError: When prometheus_client is not installed.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise UnsupportedError(
            "loadax watch needs prometheus_client, which is not installed; pip install prometheus-client"
        ) from error
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310 - http(s), as checked
            text = answer.read(_LONGEST).decode("utf-8", "replace")
        families = list(text_string_to_metric_families(text))
    except (OSError, HTTPException) as error:
        raise ArgumentError(
            f"{redact(url)} does not answer ({error}); check that the job runs, and pass the url of "
            "loadax.interop.prometheus.serve(loader)"
        ) from error
    except ValueError as error:
        raise ArgumentError(f"{redact(url)} is not a Prometheus endpoint: {error}; check the URL") from error
    samples = [sample for family in families for sample in family.samples if sample.name.startswith("loadax_")]
    if not samples:
        raise ArgumentError(
            f"{redact(url)} has no metrics of loadax; check the port, or wait until the loader iterates"
        )
    return {sample.labels.get("stage", sample.name): sample.value for sample in samples}


def status_line(before: Mapping[str, float], now: Mapping[str, float], seconds: float) -> str:
    """What happened between two scrapes.

    Args:
        before: Earlier metrics, as `scrape` returns them.
        now: Later ones.
        seconds: Time between them.
    """

    def grown(name: str) -> float:
        # Less than before: another iterator has begun to count from 0.
        later, earlier = now.get(name, 0.0), before.get(name, 0.0)
        return later - earlier if later >= earlier else later

    if not grown("loadax_steps_total"):
        return f"step {now.get('loadax_step', 0):,.0f}  no step in {seconds:.1f} s"
    waited = grown("loadax_wait_seconds_total") / seconds
    work = {stage: grown(stage) for stage in _STAGES}
    busiest = max(work, key=lambda stage: work[stage])
    parts = [
        f"step {now.get('loadax_step', 0):,.0f}",
        f"{grown('loadax_steps_total') / seconds:,.1f} steps/s",
        f"{grown('loadax_rows_total') / seconds:,.0f} rows/s",
        f"{size_text(grown('loadax_bytes_total') / seconds)}/s",
        f"waited {percent_text(min(1.0, waited))}",
        f"{now.get('loadax_ready_batches', 0):.0f} ready",
        f"{now.get('loadax_workers', 0):.0f} workers",
    ]
    if work[busiest]:
        parts.append(f"{busiest} {percent_text(work[busiest] / sum(work.values()))} of the work")
    masked = grown("loadax_masked_rows_total")
    return "  ".join([*parts, *([f"{masked:,.0f} rows masked"] if masked else [])])


@contextmanager
def _one_line() -> Iterator[Any]:
    """A function that shows a line: in place of the one before it on a terminal, else below it."""
    if not sys.stdout.isatty():

        def show(text: str) -> None:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

        yield show
        return

    def replace(text: str) -> None:
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()

    try:
        yield replace
    finally:
        sys.stdout.write("\n")
