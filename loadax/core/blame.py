"""Notes on the exceptions of users' functions: which row they are about."""

RAISED = (Exception, SystemExit, GeneratorExit)
"""Exceptions that get a note with their row. KeyboardInterrupt is not one, since it may arrive at any row."""


def blame(error: BaseException, what: str, note: str) -> None:
    """Adds a note to an exception of a user's function.

    Raises:
        RuntimeError: In place of an exception that would silently end a loop or the program. A StopIteration looks like
            the end of the data (PEP 479 does the same for generators), and a `sys.exit()` on a worker thread looks like
            that of the training script.
    """
    if not isinstance(error, StopIteration | SystemExit | GeneratorExit):
        error.add_note(note)
        return
    made = RuntimeError(f"{what} raised {error!r}")
    made.add_note(note)
    raise made from error
