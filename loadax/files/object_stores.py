"""Opens buckets and web servers by obstore: settings and credentials of the environment, retries, error messages."""

import base64
import configparser
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loadax.errors import SourceError, StorageError
from loadax.files.hub import authorization, hub_place
from loadax.files.paths import BUCKETS
from loadax.redaction import redact, redacted

# Timeout of one read in seconds: far longer than all tries take.
PATIENCE = 300.0

TRIES = 6  # of a request whose errors may pass
# Every try is ours (`attempts.py`): obstore's own would hide refusals from the budget of requests.
_RETRIES: Any = {"max_retries": 0}
STALLED = 10  # seconds without a byte, after which a request is sent again
# Variables by which a role gets its credentials.
_ROLES = {
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
}
_R2_REGION = "auto"
REGION_URL = "https://{bucket}.s3.amazonaws.com"
_SCHEMES = (*BUCKETS, "http", "https")
_AZURE = (
    "abfs",
    "abfss",
)  # whose URLs may name the account: abfs://container@account.dfs.core.windows.net
# A host, and at most a port, at the end of the authority of a URL.
_HOST = re.compile(r"(?:^|@)(?:\[[^\]@]*\]|[^:@\[\]]*)(?::\d*)?$")
_STATUS = re.compile(r"status code: (\d+ [A-Za-z ]+)")
# Errors that may pass: no answer, half of one, or an error of the server.
PASSING = re.compile(
    r"status code: (?:408|5\d\d)|body error|error sending request|timed out|was cut short"
)
_CODE = re.compile(r"<Code>(\w+)</Code>")
# Seconds before TensorStore is asked again for what a server refuses because there are too many requests: a minute in
# all, after its own retries, which don't heed `Retry-After`.
PAUSES = (2.0, 4.0, 8.0, 16.0, 30.0)

_LIMITED = r"(?:status code: |HTTP code )(?:429|503)|SlowDown|TooManyRequests|rateLimitExceeded"
_EXPIRED = r"ExpiredToken|TokenRefreshRequired|RequestExpired|Request has expired|[Tt]oken (?:is|has) expired"
# By a part of the message of obstore or TensorStore.
COMMON_REMEDIES = {
    _EXPIRED: "the credentials have expired: refresh them, and resume the run from its last state",
    _LIMITED: "the server limits requests, or is overloaded: use fewer workers and hosts, or go on later from the last "
    "state",
}
_REMEDIES = {
    **COMMON_REMEDIES,
    "169.254.169.254": "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_SKIP_SIGNATURE=true for a public bucket",
    "Account must be "
    "specified": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or other credentials",
    "40[13] ": "access was refused: check the credentials in the environment, or in the URL of a web server, and their "
    "rights",
    "NoSuchBucket": "check the name of the bucket",
    "without LOCATION": "set AWS_REGION to the region of the bucket",
    PASSING.pattern: f"no answer after {TRIES} tries: is the server up, and the address "
    "right?",
}


def split_url(location: str) -> tuple[str, str]:
    """Splits a URL into that of its bucket or server, with the query, and the key of the object.

    Raises:
        SourceError: When files at such a URL can't be read; shows it.

    Examples:
        >>> from loadax.files.object_stores import split_url
        >>> split_url("https://host:80/a/b%20c.bin?version=2")
        ('https://host:80?version=2', 'a/b c.bin')
    """
    parts = urlsplit(location)
    check_host(location)
    if parts.scheme not in _SCHEMES or not parts.netloc or "|" in location:
        raise SourceError(
            f"{location}: files can't be read at such a URL; pass a local path, or a "
            "file://, s3://, r2://, gs://, az://, abfs://, hf://, http:// or https:// "
            "URL"
        )
    has_user = "@" in parts.netloc and parts.scheme not in _AZURE
    if parts.scheme in BUCKETS and (parts.query or parts.fragment or has_user):
        raise SourceError(
            f"{location}: the URL of a file in a bucket is "
            f"{parts.scheme}://bucket/key, without user, query and fragment; encode "
            "a '?' in a key as %3F, and a '#' as %23"
        )
    if parts.scheme == "hf":
        place = hub_place(location)
        return place.root, place.key
    if parts.query:
        query = f"?{parts.query}"
    else:
        query = ""
    key = unquote(parts.path)
    if parts.scheme in BUCKETS:
        key = key[1:]
    else:
        key = key.lstrip("/")
    return f"{parts.scheme}://{parts.netloc}{query}", key


def check_host(location: str) -> None:
    """Refuses the URL of a web server whose host is cut short by a character of a password.

    Raises:
        SourceError: When the port is not a number; shows the URL without the password.
    """
    parts = urlsplit(location)
    if parts.scheme in ("http", "https") and not _HOST.search(parts.netloc):
        raise SourceError(
            f"{location}: the port is not a number; in a user name and a password "
            "encode '/' as %2F, '?' as %3F, '#' as %23, '@' as %40 and ':' as %3A"
        )


def basic_authorization(url: str) -> tuple[str, dict[str, str]]:
    """Splits a URL into that without user name and password, and the header that sends these.

    Examples:
        >>> from loadax.files.object_stores import basic_authorization
        >>> basic_authorization("https://me:p%40ss@host:80/a.npy")
        ('https://host:80/a.npy', {'Authorization': 'Basic bWU6cEBzcw=='})
        >>> basic_authorization("https://host/a.npy")
        ('https://host/a.npy', {})
    """
    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    user, _, password = credentials.partition(":")
    encoded = base64.b64encode(
        f"{unquote(user)}:{unquote(password)}".encode()
    ).decode()
    return parts._replace(netloc=host).geturl(), {"Authorization": f"Basic {encoded}"}


def open_object_store(url: str) -> Any:
    """Opens the bucket or web server at a URL from `split_url`; sends no request, except to find a bucket's region.

    Raises:
        SourceError: When the bucket can't be opened with the settings of the environment; shows its URL.
    """
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    parts = urlsplit(url)
    options: Any = {
        "retry_config": _RETRIES,
        "client_options": {
            "allow_http": True,
            "read_timeout": timedelta(seconds=STALLED),
            "timeout": timedelta(seconds=PATIENCE),
        },
    }
    try:
        match parts.scheme:
            case "s3":
                return S3Store(
                    parts.netloc, config=_s3_settings(parts.netloc), **options
                )
            case "gs":
                # of a test server, as TensorStore names it
                own = os.environ.get("TENSORSTORE_GCS_HTTP_URL")
                settings: Any
                if own:
                    settings = {"base_url": own, "skip_signature": True}
                else:
                    settings = None
                return GCSStore(parts.netloc, config=settings, **options)
            case "r2":
                return S3Store(parts.netloc, config=_r2_settings(url), **options)
            case "az" | "abfs" | "abfss":
                container, _, host = parts.netloc.partition("@")
                account: Any = None
                if host:
                    account = {"account_name": host.partition(".")[0]}
                return AzureStore(container, config=account, **options)
            case "hf":
                options["client_options"]["default_headers"] = authorization()
                return HTTPStore(hub_place(url).files, **options)
            case _:
                plain, headers = basic_authorization(url)
                options["client_options"]["default_headers"] = headers
                return HTTPStore(plain, **options)
    except (BaseError, ValueError) as error:
        raise failure(error, url) from redacted(error)


def is_limited(message: str) -> bool:
    """Whether a message says that a server limits requests: 429, or 503, with which S3 says SlowDown."""
    return re.search(_LIMITED, message) is not None


def is_expired(message: str) -> bool:
    """Whether a message says that credentials were right, but have expired."""
    return re.search(_EXPIRED, message) is not None


def failure(error: Exception, name: str) -> StorageError:
    """Error of a request: `name`, the cause and a remedy, without the response's body and obstore's own dump."""
    text = str(error).partition("\n\nDebug source")[0]
    status = _STATUS.search(text)
    code = _CODE.search(text)
    brief = text.partition(" - ")[2] or text.partition("error: ")[2] or text
    if status:
        brief = (
            "the server answered "
            f"{status[1].strip()}{f' ({code[1]})' if code else ''}"
        )
    remedy = next(
        (
            f"; {remedy}"
            for part, remedy in _REMEDIES.items()
            if re.search(part, text)
        ),
        "",
    )
    return StorageError(f"{redact(name)}: {brief.splitlines()[0]}{remedy}")


def _r2_settings(url: str) -> Any:
    """Settings of Cloudflare R2, which speaks S3: its endpoint is that of an account."""
    account = os.environ.get("CLOUDFLARE_ACCOUNT_ID")
    settings = _s3_settings(urlsplit(url).netloc, _R2_REGION)
    if "endpoint" not in settings and not account:
        raise SourceError(
            f"{url}: set CLOUDFLARE_ACCOUNT_ID, or AWS_ENDPOINT_URL to the endpoint of "
            "the account, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to its keys"
        )
    if "endpoint" not in settings:
        endpoint = f"https://{account}.r2.cloudflarestorage.com"
        settings["endpoint"] = settings["aws_endpoint_url_s3"] = endpoint
    return settings


def _s3_settings(bucket: str, region: str = "") -> Any:
    """Settings that obstore does not take from the environment itself: profiles, regions, empty variables.

    Args:
        bucket: Name of the bucket.
        region: Its region; empty: that of the environment.
    """
    settings: dict[str, Any] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get(
        "AWS_ENDPOINT_URL"
    )
    profile = _aws_profile()
    if endpoint:
        settings["endpoint"] = settings["aws_endpoint_url_s3"] = endpoint
    known = (
        region
        or os.environ.get("AWS_REGION")
        or os.environ.get("AWS_DEFAULT_REGION")
        or profile.get("region")
    )
    settings["region"] = known or ("us-east-1" if endpoint else _region_of(bucket))
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return settings
    if "aws_access_key_id" in profile:
        settings["access_key_id"] = profile["aws_access_key_id"]
        settings["secret_access_key"] = profile.get("aws_secret_access_key", "")
        if "aws_session_token" in profile:
            settings["session_token"] = profile["aws_session_token"]
    elif os.environ.get(
        "AWS_EC2_METADATA_DISABLED", ""
    ).lower() == "true" and _ROLES.isdisjoint(os.environ):
        settings["skip_signature"] = True  # nothing is left to ask for credentials
    return settings


def _aws_profile() -> dict[str, str]:
    """The profile of AWS's own files: keys and region."""
    name = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, file, section in (
        (
            "AWS_CONFIG_FILE",
            "~/.aws/config",
            name if name == "default" else f"profile {name}",
        ),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(
                Path(os.environ.get(variable) or file).expanduser(), encoding="utf-8"
            )
        except configparser.Error:
            # as if there were none: the file may be for tools that read it otherwise
            continue
        if parser.has_section(section):
            found.update(parser.items(section))
    return found


def _region_of(bucket: str) -> str:
    """Asks S3 for the region of a bucket: it says so in any answer, also without credentials."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(REGION_URL.format(bucket=bucket), method="HEAD")  # noqa: S310 - https
    try:
        with urllib.request.urlopen(request, timeout=STALLED) as response:  # noqa: S310
            headers = response.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
        error.close()
    except (OSError, ValueError):
        return "us-east-1"
    return str(headers.get("x-amz-bucket-region") or "us-east-1")
