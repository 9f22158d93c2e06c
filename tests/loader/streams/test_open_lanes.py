"""OpenLanes: the rows of a piece, whichever lanes they are of and whoever reads the other rows of these lanes."""

from typing import Any

import numpy as np
import pytest

from loadax import from_stream
from loadax.loader.streams.open_lanes import OpenLanes
from loadax.loader.streams.tickets import LaneTickets, PieceTickets
from tests.streams import CountedLanes, row_of

LANES = 3


@pytest.mark.parametrize("order", ["by lane", "by turn", "backwards by lane"])
@pytest.mark.parametrize("first", [0, 50])
@pytest.mark.parametrize("epochs", [None, 1])
def test_rows_between_those_of_a_piece_are_skipped(order: str, first: int, epochs: int | None) -> None:
    """On a mesh that mixes devices of hosts, one has rows 0, 1, 4 and 5 of a lane, and another one the others."""
    data: Any = from_stream(CountedLanes(), lanes=LANES, spec={"x": np.int32(0)})
    lanes = OpenLanes(first, data.source, epochs, {})
    places = [(lane, turn) for turn in (0, 1, 4, 5) for lane in range(LANES)]
    if order != "by turn":
        places.sort(reverse=order.startswith("backwards"), key=lambda place: place[0])
    tickets = LaneTickets()
    for piece in range(3):
        wanted = [(lane, turn + 8 * piece) for lane, turn in places]
        rows = first + np.array([turn * LANES + lane for lane, turn in wanted])
        located = lanes.locate(0, rows)
        assert located is not None
        lost, ended, release = lanes.read(located, PieceTickets(tickets, piece), lambda: [0] * LANES, None)
        assert (lost.tolist(), ended) == ([], "")
        read = lanes.opened.read(rows - first)
        assert read["x"].tolist() == [row_of(lane, turn) for lane, turn in wanted]
        assert release is not None
        release()


def test_lane_that_has_ended_is_named_and_its_rows_are_lost() -> None:
    data: Any = from_stream(CountedLanes([9, 5]), lanes=2, spec={"x": np.int32(0)})
    lanes = OpenLanes(0, data.source, 1, {})
    wanted = [(lane, turn) for lane in (0, 1) for turn in (0, 1, 4, 6)]
    located = lanes.locate(0, np.array([turn * 2 + lane for lane, turn in wanted]))
    assert located is not None
    lost, ended, _ = lanes.read(located, PieceTickets(LaneTickets(), 0), lambda: [0, 0], None)
    assert [wanted[index] for index in lost] == [(1, 6)]
    assert ended == "lane 1 ended after 5 rows"
