"""Local paths and URLs through TensorStore's key-value stores, with timeouts and retries.

What every backend here needs to say in the same way: how a path or URL becomes a key-value store (`key_value_spec`), on
what terms stores are asked (`new_context`), and how an answer is waited for (`wait`).
"""

import logging
import os
import re
from pathlib import Path
from time import monotonic
from typing import Any

import tensorstore as ts

from loadax.core.arguments import path as checked_path
from loadax.errors import SourceError
from loadax.redaction import redact, redacted
from loadax.sources.io.paths import local_path

PATIENCE = 300.0
"""Seconds that one read may take before it is an error: far longer than the six tries below go on for."""

_NOTICE = 5.0  # seconds of waiting until a log line says so; twice as long for each one that follows
_TRIES = 6
_BACKOFF = {"max_retries": _TRIES - 1, "initial_delay": "200ms", "max_delay": "3s"}  # six seconds of waiting in all
_REQUESTS = 64  # under way at once: a step of so many scattered rows then takes about one round trip
_STALLED = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "10", "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1"}
_REMEDIES = (  # part of TensorStore's message, and what a user can do about it
    (
        "NOT_FOUND: chunk",
        (
            "the copy is incomplete, or its writer left out chunks that hold only the fill value: "
            "copy it again, or pass missing='fill' if those are right"
        ),
    ),
    ("valid ZIP EOCD", "the file is no zip file, or was cut short: copy it again"),
    ("DATA_LOSS", "the stored bytes are damaged: copy that file again"),
    ("PERMISSION_DENIED", "access was refused: check the credentials in the environment, and their rights"),
    ("retry attempts failed", f"no answer after {_TRIES} tries: is the server up, and the address right?"),
)

_DUMPS = re.compile(r" \[(?:[\w-]+='|source locations=)")

_log = logging.getLogger("loadax")

# TensorStore reads these once, before its first request: after ten seconds without a byte a transfer is given up and
# tried again. Its own default is two minutes. What the user has set stays.
for _name, _value in _STALLED.items():
    os.environ.setdefault(_name, _value)


def new_context(cache_bytes: int) -> ts.Context:
    """A new context: a cache of `cache_bytes`, and six tries for a request instead of 14 minutes of retries."""
    remote = {f"{kind}_request_retries": _BACKOFF for kind in ("http", "s3", "gcs")}
    width = {f"{kind}_request_concurrency": {"limit": _REQUESTS} for kind in ("http", "s3", "gcs")}
    return ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}, **remote, **width})


def key_value_spec(location: str | os.PathLike[str]) -> dict[str, Any]:
    """TensorStore's key-value store for a path or URL.

    `file://`, `s3://`, `gs://`, `http(s)://`, also `…|zip:` and `…|ocdbt:`.

    A store on S3 goes to `AWS_ENDPOINT_URL` (or `AWS_ENDPOINT_URL_S3`) when that is set, as in AWS's own tools.

    Raises:
        ArgumentError: when it can't be the path of anything.
        SourceError: when TensorStore does not know the URL; shows it.
    """
    text = checked_path("path", location, "a path or URL")
    path = local_path(text)
    if path is not None:
        return {"driver": "file", "path": str(path) + ("/" if text.endswith("/") else "")}
    base, bar, rest = text.partition("|")
    below = local_path(base)
    try:
        spec = ts.KvStore.Spec((base if below is None else below.as_uri()) + bar + rest).to_json()
    except ValueError as error:
        raise SourceError(
            f"{text}: {brief(error)}; pass a local path, or a file://, s3://, gs://, http:// or https:// URL"
        ) from redacted(error)
    return at_endpoint(spec)


def address_of(kvstore: Any) -> str:
    """The URL of a key-value store spec, for messages; TensorStore gives none where S3 has an endpoint."""
    if not isinstance(kvstore, dict):
        return kvstore if isinstance(kvstore, str) else ""
    path, driver = kvstore.get("path", ""), kvstore.get("driver")
    if "base" in kvstore:
        return f"{address_of(kvstore['base'])}|{driver}:{path}"
    if driver == "file":
        return Path(path).absolute().as_uri() + ("/" if path.endswith("/") else "")
    if driver == "http":
        return f"{kvstore.get('base_url', '').rstrip('/')}/{path.lstrip('/')}"
    scheme, bucket = "gs" if driver == "gcs" else driver, kvstore.get("bucket")
    return f"{scheme}://{bucket}/{path}" if bucket else f"{scheme}://{path}"


def at_endpoint(spec: Any) -> Any:
    """A key-value store spec (a URL, or JSON) with the environment's S3 endpoint filled in wherever it names none."""
    if isinstance(spec, str):
        return key_value_spec(spec)
    if not isinstance(spec, dict):
        return spec
    if "base" in spec:
        return {**spec, "base": at_endpoint(spec["base"])}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if spec.get("driver") != "s3":
        return spec
    filled = dict(spec)
    if endpoint and "endpoint" not in filled:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        filled = {"endpoint": endpoint, "aws_region": region, **filled}
    if "AWS_ACCESS_KEY_ID" in os.environ and "aws_credentials" not in filled:
        filled["aws_credentials"] = {
            "type": "environment"
        }  # the default looks in files first, and complains of each that is not there
    return filled


def open_key_value_store(location: str | os.PathLike[str], context: ts.Context) -> ts.KvStore:
    """The key-value store at a path or URL. Opening asks no server anything; reading does."""
    return wait(ts.KvStore.open(key_value_spec(location), context=context), str(location))


def wait(future: Any, name: str, patience: float = PATIENCE) -> Any:
    """The result of a TensorStore future; says in the log when it has to wait long.

    Args:
        future: of anything.
        name: Name of the awaited object, with which a message begins: a URL, or a leaf and its URL.
        patience: seconds.

    Raises:
        SourceError: When the read fails or times out; the message ends with a remedy.
    """
    began, notice = monotonic(), _NOTICE
    while True:
        try:
            return future.result(timeout=min(notice, patience))
        except TimeoutError as error:
            waited = monotonic() - began
            if waited >= patience:
                future.cancel()
                raise SourceError(f"{redact(name)}: no answer after {waited:.0f} s; is the store reachable?") from error
            _log.warning("%s: no answer for %.0f s, still waiting", redact(name), waited)
            notice = min(2 * notice, patience - waited)
        except NotImplementedError:
            raise  # what the store can't do is for the caller to know, who asked
        except (ValueError, IndexError, OSError) as error:
            raise SourceError(failure(error, redact(name))) from redacted(error)


def failure(error: Exception, name: str) -> str:
    """TensorStore's error as a message: `name`, the cause, a remedy."""
    text = brief(error)
    remedy = next((f"; {remedy}" for part, remedy in _REMEDIES if part in text), "")
    return f"{name}: {text}{remedy}"


def brief(error: Exception) -> str:
    """TensorStore's message without what it appends for its own developers.

    Specs, response bodies, source code lines.
    """
    return _DUMPS.split(str(error))[0]
