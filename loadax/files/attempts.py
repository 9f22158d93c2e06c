"""Attempts of one request: when it is sent again, and the error of the last attempt."""

import random
import re
import time
from collections.abc import Callable
from typing import Any

from loadax.core.log import log
from loadax.errors import LoadaxError
from loadax.files.object_stores import PAUSES, failure, is_limited
from loadax.redaction import redact, redacted

# seconds before the one retry of a request that obstore does not retry
_SECOND_TRY = 0.2
# number of the pause that is logged: a first one is short, and may be of many requests
_TOLD = 1
_RETRIED = re.compile(r"after \d+ retries|body error")


def attempt(ask: Callable[[], Any], name: str, *, expected: bool) -> Any:
    """Sends a request, and sends it again after a fault that may pass.

    A server that limits requests is waited for up to a minute; obstore has tried six times before each pause.

    Args:
        ask: Sends the request with obstore.
        name: URL, and the range of bytes, with which a message begins.
        expected: Whether the file exists for all that is known, so that a 404 is worth a second request.

    Returns:
        The answer; None for a file that does not exist.

    Raises:
        StorageError: When the last attempt fails; the message ends with a remedy.
    """
    from obstore.exceptions import BaseError

    pauses = enumerate(PAUSES)
    is_first = True
    while True:
        try:
            return ask()
        except FileNotFoundError:
            if not expected or not is_first:
                return None
            pause = _SECOND_TRY
        except LoadaxError:
            raise
        except (BaseError, ValueError, OSError) as error:
            if (
                is_limited(str(error))
                and (following := next(pauses, None)) is not None
            ):
                number, pause = following
                if number == _TOLD:
                    text = (
                        "%s: the server limits requests (%s); it is requested again "
                        "for up to %.0f s"
                    )
                    log.warning(text, redact(name), _status(error), sum(PAUSES))
            elif is_first and _may_pass(error):
                pause = _SECOND_TRY
            else:
                raise failure(error, name) from redacted(error)
        is_first = False
        time.sleep(pause * random.uniform(1, 1.2))  # noqa: S311 - so that requests don't return together


def _status(error: Exception) -> str:
    """Status code in a message, such as `429`."""
    found = re.search(r"status code: (\d+)", str(error))
    if found:
        return found[1]
    return "SlowDown"


def _may_pass(error: Exception) -> bool:
    """Whether a second request may help: not after a refusal, nor after obstore's own retries."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return not refused and not _RETRIED.search(str(error))
