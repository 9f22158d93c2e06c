"""Exceptions of workers keep their type and traceback, or become a `WorkerError`."""

import builtins
import copyreg
import pickle
from typing import Any

import pytest

from loadax.errors import LeafError, WorkerError
from loadax.work.remote_errors import RemoteError, unwrap, wrap
from tests.loader.workers import maps


def thrown(error: BaseException) -> BaseException:
    with pytest.raises(type(error)) as caught:
        raise error
    return unwrap(wrap(caught.value), "worker process 12")


@pytest.fixture(autouse=True)
def plain_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what Dask registers for all classes of exceptions when a test of this process imports it."""
    for kind in [kind for kind in copyreg.dispatch_table if issubclass(kind, BaseException)]:
        monkeypatch.delitem(copyreg.dispatch_table, kind)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "none", "f.bin"),
        LeafError("leaf"),
        maps.UnluckyError("no"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
)
def test_types_and_arguments_stay(error: Exception) -> None:
    error.add_note("loadax: in row 3")
    back = thrown(error)
    assert type(back) is type(error)
    assert (back.args, str(back)) == (error.args, str(error))
    first, second = back.__notes__
    assert first == "loadax: in row 3"
    assert second.startswith("loadax: in worker process 12:\nTraceback")
    assert "test_remote_errors.py" in second


def test_the_cause_is_in_the_traceback() -> None:
    with pytest.raises(RuntimeError) as caught:
        maps.raises("cause")({"x": 21})
    (note,) = unwrap(wrap(caught.value), "a worker").__notes__
    assert "KeyError: 'first'" in note


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (maps.ClosedError("no good"), "ClosedError: no good"),
        # comes back with another argument than its __init__ wants
        (maps.TwoError(3, "no good"), "TwoError: row 3: no good"),
        (maps.MuteError(), "MuteError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_what_can_not_come_back_or_would_end_the_trainer_is_a_worker_error(error: BaseException, line: str) -> None:
    back = thrown(error)
    assert type(back) is WorkerError
    assert str(back) == f"a worker process raised {line}"
    assert type(error).__name__ in back.__notes__[0]


def test_a_class_that_came_by_value_goes_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a worker: the class is of a `__main__` that this module table knows under another name, or not at all."""
    kind: Any = type("Mine", (Exception,), {"__module__": "__main__"})
    failure = wrap(kind("no good"))
    assert type(unwrap(failure, "a worker")) is WorkerError  # there is none here
    import __main__

    monkeypatch.setattr(__main__, "Mine", kind, raising=False)
    back = unwrap(failure, "a worker")
    assert type(back) is kind
    assert str(back) == "no good"


def test_what_is_no_exception_is_not_raised() -> None:
    back = unwrap(RemoteError(pickle.dumps(3), "Odd: 3", "Traceback …"), "a worker")
    assert type(back) is WorkerError
    assert str(back) == "a worker process raised Odd: 3"
    assert back.__notes__ == ["loadax: in a worker:\nTraceback …"]
    assert not isinstance(back, builtins.SystemExit)
