"""Access to zarr stores at local paths and URLs through TensorStore, with timeouts and retries.

All backends share `key_value_spec` (from a path or URL to a store), `new_context` (cache, retries, concurrency) and
`wait` (timeouts and error messages).
"""

import os
import re
from pathlib import Path
from time import perf_counter
from typing import Any

import tensorstore as ts

from loadax.core.arguments import path as checked_path
from loadax.core.patience import NOTICE, Patience
from loadax.errors import SourceError, StorageError
from loadax.files.object_stores import (
    COMMON_REMEDIES,
    PATIENCE,
    check_host,
    is_expired,
)
from loadax.files.paths import local_path
from loadax.files.spec_json import spec_json
from loadax.files.waits import waiting_for_storage
from loadax.redaction import redact, redacted

_TRIES = 6
# six seconds of waiting in all
BACKOFF = {"max_retries": _TRIES - 1, "initial_delay": "200ms", "max_delay": "3s"}
# concurrent requests: a step of 64 scattered rows then takes about one round trip
_REQUESTS = 64
_STALLED = {
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "10",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}
_REMEDIES = {  # by a part of TensorStore's message
    **COMMON_REMEDIES,
    "NOT_FOUND: "
    "chunk": "the copy is incomplete, or its writer left out chunks that hold only the fill value: copy it "
    "again, or pass missing='fill' if those are right",
    "valid ZIP EOCD": "the file is not a zip file, or was cut short: copy it again",
    "DATA_LOSS": "the stored bytes are damaged: copy that file again",
    "PERMISSION_DENIED": "access was refused: check the credentials in the environment, and their rights",
    "retry attempts "
    "failed": f"no answer after {_TRIES} tries: is the server up, and the address right?",
}

_DUMPS = re.compile(r" \[(?:[\w-]+='|source locations=)")

# TensorStore reads these once, before its first request: it aborts and retries a transfer after ten seconds without a
# byte (its default is two minutes). Values that the user has set are kept.
for _name, _value in _STALLED.items():
    os.environ.setdefault(_name, _value)


def new_context(cache_bytes: int) -> ts.Context:
    """Creates a context with a cache of `cache_bytes` and six tries per request instead of 14 minutes of retries."""
    remote = {f"{kind}_request_retries": BACKOFF for kind in ("http", "s3", "gcs")}
    width = {
        f"{kind}_request_concurrency": {"limit": _REQUESTS}
        for kind in ("http", "s3", "gcs")
    }
    return ts.Context(
        {"cache_pool": {"total_bytes_limit": cache_bytes}, **remote, **width}
    )


def key_value_spec(location: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns TensorStore's key-value store spec for a path or URL.

    URLs are `file://`, `s3://`, `gs://` or `http(s)://`, also with `|zip:` or `|ocdbt:` appended. S3 stores use
    `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL` if one is set, like AWS's own tools.

    Raises:
        ArgumentError: When it is not a valid path.
        SourceError: When TensorStore does not know the URL; shows it.
    """
    text = checked_path("path", location, "a path or URL")
    path = local_path(text)
    if text.encode(errors="ignore").decode() != text:
        what = (
            "TensorStore opens names in UTF-8 only; rename that folder, or link to "
            "it by another name"
        )
        raise SourceError(f"{text}: {what}")
    if path is not None:
        return {
            "driver": "file",
            "path": str(path) + ("/" if text.endswith("/") else ""),
        }
    base, bar, rest = text.partition("|")
    check_host(base)
    below = local_path(base)
    try:
        spec = spec_json(
            ts.KvStore.Spec((base if below is None else below.as_uri()) + bar + rest)
        )
    except ValueError as error:
        raise SourceError(
            f"{text}: {brief(error)}; pass a local path, or a file://, s3://, gs://, "
            "http:// or https:// URL"
        ) from redacted(error)
    return settled(spec)


def address_of(kvstore: Any) -> str:
    """URL of a key-value store spec, for messages; TensorStore has none for S3 with an endpoint."""
    if not isinstance(kvstore, dict):
        if isinstance(kvstore, str):
            return kvstore
        return ""
    path = kvstore.get("path", "")
    driver = kvstore.get("driver")
    if "base" in kvstore:
        return f"{address_of(kvstore['base'])}|{driver}:{path}"
    if driver == "file":
        return Path(path).absolute().as_uri() + ("/" if path.endswith("/") else "")
    if driver == "http":
        return f"{kvstore.get('base_url', '').rstrip('/')}/{path.lstrip('/')}"
    scheme = "gs" if driver == "gcs" else driver
    bucket = kvstore.get("bucket")
    if bucket:
        return f"{scheme}://{bucket}/{path}"
    return f"{scheme}://{path}"


def settled(spec: Any) -> Any:
    """A key-value store spec (a URL or JSON) that means the same wherever it is opened later.

    Paths are absolute, and S3 stores without an endpoint have that of the environment.
    """
    if isinstance(spec, str):
        return key_value_spec(spec)
    if not isinstance(spec, dict):
        return spec
    if "base" in spec:
        return {**spec, "base": settled(spec["base"])}
    if spec.get("driver") == "file" and not (path := spec.get("path", "")).startswith(
        "/"
    ):
        return {**spec, "path": str(Path(path).absolute()) + "/" * path.endswith("/")}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get(
        "AWS_ENDPOINT_URL"
    )
    if spec.get("driver") != "s3":
        return spec
    filled = dict(spec)
    if endpoint and "endpoint" not in filled:
        region = (
            os.environ.get("AWS_REGION")
            or os.environ.get("AWS_DEFAULT_REGION")
            or "us-east-1"
        )
        filled = {"endpoint": endpoint, "aws_region": region, **filled}
    if "AWS_ACCESS_KEY_ID" in os.environ and "aws_credentials" not in filled:
        # The default looks in files first, and warns about each that does not exist.
        filled["aws_credentials"] = {"type": "environment"}
    return filled


# Status codes of TensorStore for stored bytes that are wrong, wherever they are read.
_OF_CONTENTS = (
    "DATA_LOSS",
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
)


def wait(future: Any, name: str, patience: float = PATIENCE) -> Any:
    """Waits for a TensorStore future, with log lines during a long wait, and returns its result.

    Args:
        future: Future to wait for.
        name: Name of the awaited object, with which a message begins: a URL, or a leaf and its URL.
        patience: Timeout in seconds.

    Raises:
        SourceError: When the read fails or times out; the message ends with a remedy.
    """
    with waiting_for_storage():
        return _result(future, name, patience)


def _result(future: Any, name: str, patience: float) -> Any:
    began = perf_counter()
    timeout = min(NOTICE, patience)
    waiting = None
    try:
        while True:
            try:
                return future.result(timeout=timeout)
            except TimeoutError:
                waiting = waiting or Patience(NOTICE, patience, began)
                if waiting.over:
                    future.cancel()
                waiting.check_storage(name)
                timeout = waiting.rest
    except (NotImplementedError, StorageError):
        raise  # the caller handles operations that a store does not support
    except (ValueError, IndexError, OSError) as error:
        is_damage = str(error).startswith(_OF_CONTENTS) and not is_expired(str(error))
        if is_damage:
            kind = SourceError
        else:
            kind = StorageError
        raise kind(failure(error, redact(name))) from redacted(error)


def failure(error: Exception, name: str) -> str:
    """Formats TensorStore's error as `name`, cause and remedy."""
    text = brief(error)
    remedy = next(
        (
            f"; {remedy}"
            for part, remedy in _REMEDIES.items()
            if re.search(part, text)
        ),
        "",
    )
    return f"{name}: {text}{remedy}"


def brief(error: Exception) -> str:
    """Strips specs, response bodies and source locations from TensorStore's message."""
    return _DUMPS.split(str(error))[0]
