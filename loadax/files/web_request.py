"""Sends a GET to a web server; credentials stay with the server that they are for, also where it redirects."""

import urllib.request
from collections.abc import Mapping
from typing import Any, final
from urllib.parse import urlsplit

from loadax.files.object_stores import STALLED


def open_web(url: str, headers: Mapping[str, str]) -> Any:
    """Returns the open answer of a GET.

    A redirect to another server, or from https to http, is followed without `Authorization`: urllib would send it on.

    Raises:
        urllib.error.HTTPError: When the server answers with an error.
        OSError: When it does not answer.
    """
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - callers check or choose the scheme
    return _OPENER.open(request, timeout=STALLED)


@final
class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, *answer: Any) -> Any:
        following = super().redirect_request(req, *answer)
        if following is not None and _server(following) != _server(req):
            following.remove_header("Authorization")
        return following


def _server(request: urllib.request.Request) -> tuple[str, str]:
    parts = urlsplit(request.full_url)
    return parts.scheme, parts.netloc


_OPENER = urllib.request.build_opener(_Redirects)
