"""Attempts of one request: when it is sent again, and the error of the last attempt."""

import random
import re
from typing import final

from loadax.core.log import log
from loadax.errors import LoadaxError
from loadax.files.object_stores import PASSING, TRIES, failure, is_limited
from loadax.redaction import redact, redacted

# Seconds before a request is sent again after a fault that may pass: soon at first, since others are well, and the step
# that waits for this one has no other work.
PAUSES = (0.05, 0.4, 0.8, 1.6, 3.0)
assert len(PAUSES) == TRIES - 1
# And after a refusal because there are too many requests: a minute in all.
LIMITED = (0.2, 0.4, 0.8, 1.6, 3.0, 6.0, 10.0, 15.0, 25.0)
# Refusal that is logged: the first pauses are short, and may be of many requests.
TOLD = 5
SECOND_TRY = 0.2  # seconds, of a known file that is missing
_STATUS = re.compile(r"status code: (\d+)")
_TIMED_OUT = re.compile("timed out")


class NoSuchFile(Exception):  # noqa: N818 - it is an answer
    """A file does not exist."""


@final
class Attempts:
    """Attempts of one request so far.

    Args:
        name: What is requested; its text begins a message.
        is_known: Whether the file exists for all that is known, so that a 404 is worth a second request.
    """

    __slots__ = ("_failed", "_is_known", "_limited", "_name")

    def __init__(self, name: object, is_known: bool):
        self._name = name
        self._is_known = is_known
        self._limited = 0
        self._failed = 0

    def pause(self, error: BaseException, is_paced: bool = False) -> float:
        """Seconds after which to send the request again, after an error that may pass.

        Args:
            error: The error.
            is_paced: Whether the server is known to limit requests; if not, one that is refused may be so by chance.

        Raises:
            StorageError: When this attempt was the last one; the message ends with a remedy.
            NoSuchFile: When the file does not exist.
        """
        from obstore.exceptions import BaseError

        if isinstance(error, FileNotFoundError):
            if self._failed or not self._is_known:
                raise NoSuchFile
            pauses: tuple[float, ...] = (SECOND_TRY,)
            number = 0
            self._failed += 1
        elif not isinstance(error, BaseError | ValueError | OSError) or isinstance(
            error, LoadaxError
        ):
            raise error
        elif is_limited(str(error)):
            pauses = LIMITED if is_paced else (PAUSES[0], *LIMITED[1:])
            number = self._limited
            self._limited += 1
            if number == TOLD:
                text = (
                    "%s: the server limits requests (%s); it is requested again "
                    "for up to %.0f s"
                )
                log.warning(
                    text, redact(str(self._name)), _status(error), sum(LIMITED)
                )
        else:
            pauses = _pauses(error)
            number = self._failed
            self._failed += 1
        if number >= len(pauses):
            raise failure(error, str(self._name)) from redacted(error)
        return pauses[number] * random.uniform(0.8, 1.2)  # noqa: S311 - so that requests don't return together


def _pauses(error: Exception) -> tuple[float, ...]:
    """Pauses after an error: none after a refusal, one after an error that nobody foresaw."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    if PASSING.search(str(error)):
        return PAUSES
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ()
    return PAUSES[:1]


def has_timed_out(message: str) -> bool:
    """Whether a message says that there was no answer in time."""
    return _TIMED_OUT.search(message) is not None


def _status(error: Exception) -> str:
    """Status code in a message, such as `429`."""
    found = _STATUS.search(str(error))
    if found:
        return found[1]
    return "SlowDown"
