"""A pool of simulated worker processes that die: each piece is answered once, or names the rows that kill workers."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from loadax.errors import WorkerError
from loadax.loader.workers import process_pool
from loadax.loader.workers.handle import LostError
from loadax.loader.workers.messages import PieceRead, ReadPiece
from loadax.loader.workers.process_pool import ProcessPool
from loadax.loader.workers.shared_memory import Block


@given(data=st.data(), workers=st.integers(1, 3), pieces=st.integers(1, 8))
@pytest.mark.filterwarnings("ignore:a worker process:RuntimeWarning")
def test_any_deaths_answer_each_piece_or_name_it(data: st.DataObject, workers: int, pieces: int) -> None:
    deaths: list[Counter[str]] = []
    started = []

    class Worker:
        def __init__(self) -> None:
            self.pending = 0
            started.append(self)

        def run(self, _job: Any, request: ReadPiece) -> PieceRead:
            when = data.draw(st.sampled_from(["", "", "", "at work", "idle", "starting", "before"]))
            if not when:
                return PieceRead((request.low,), b"")
            deaths[-1][when] += 1
            raise LostError(when)  # type: ignore[arg-type]

        def stop(self) -> None: ...

        def reap(self, _deadline: float) -> str:
            return "(7) died"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_pool, "WorkerHandle", Worker)
        pool = ProcessPool(workers)
        for piece in range(pieces):
            deaths.append(Counter())
            message = ReadPiece(0, Block(0, 0, 0), 1, piece, np.array([piece]).tobytes(), b"")
            failure = ""
            try:
                assert pool.run(SimpleNamespace(), message).timing == (piece,)  # type: ignore[arg-type]
            except WorkerError as error:
                failure = str(error)
            kills, starts = deaths[-1]["at work"], deaths[-1]["starting"]
            assert bool(failure) == (kills == 2 or starts == workers + 2)
            assert (f"reading row {piece};" in failure) == (kills == 2)
            assert deaths[-1]["at work"] <= 2
            assert len(pool._handles) == workers
            assert not any(worker.pending for worker in pool._handles)
        assert len(started) == workers + sum(each.total() for each in deaths)
        pool.close()
