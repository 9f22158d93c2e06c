"""Pinned lanes and the local cache: from the second epoch on, a host asks for nothing that its cache can hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadax
from loadax.files.files import BLOCK
from tests.servers.faults import FaultProxy

pytest_plugins = ["tests.servers.fixtures"]

ROWS = 16  # of a block
TOKENS = BLOCK // ROWS // 2  # of a row
BLOCKS, LANES, HOSTS = 64, 16, 8
SHARE = (BLOCKS // HOSTS) * (BLOCK + 4)  # bytes that a host needs for its part of the data


def corpus(folder: Path) -> Any:
    tokens = np.arange(BLOCKS * ROWS * TOKENS, dtype=np.uint64).astype(np.uint16)
    tokens.tofile(folder / "x.bin")
    return tokens.reshape(-1, TOKENS)


def loader_of(url: str, cache: Path, limit: int, host: int, pinned: bool) -> loadax.Dataloader:
    data = loadax.from_tokens(url, TOKENS - 1, stride=TOKENS, dtype="uint16", cache=cache, cache_bytes=limit).shuffle(
        0, block=ROWS, lanes=LANES, window=2, pinned=pinned
    )
    return loadax.Dataloader(data, 64, num_epochs=2, shard_index=host, shard_count=HOSTS)


def bytes_of_epochs(loaders: list[loadax.Dataloader], tokens: Any, proxy: FaultProxy) -> list[int]:
    """Bytes that the server sends in each of two epochs, read by the loaders in turn."""
    found = []
    for epoch in range(2):
        proxy.clear()
        for step in range(loaders[0].steps_per_epoch):
            for loader in loaders:
                rows = loader.local_rows(step + epoch * loader.steps_per_epoch)
                batch = loader.host_batch(step + epoch * loader.steps_per_epoch)
                np.testing.assert_array_equal(batch["tokens"], tokens[rows])
        found.append(sum(proxy.bytes_sent.values()))
    return found


@pytest.mark.parametrize("sharers", [1, 2])
def test_second_epoch_sends_no_request_for_what_fits(sharers: int, tmp_path: Path, http_proxy: FaultProxy) -> None:
    """With the cache of a node that has room for the parts of its processes."""
    tokens = corpus(tmp_path)
    url, cache = f"{http_proxy.url}/x.bin", tmp_path / "cache"
    loaders = [loader_of(url, cache, sharers * SHARE, host, True) for host in range(3, 3 + sharers)]
    first, second = bytes_of_epochs(loaders, tokens, http_proxy)
    assert first == sharers * (BLOCKS // HOSTS) * BLOCK
    assert second == 0
    assert not http_proxy.log


def test_without_pins_a_host_asks_for_other_blocks(tmp_path: Path, http_proxy: FaultProxy) -> None:
    tokens = corpus(tmp_path)
    loader = loader_of(f"{http_proxy.url}/x.bin", tmp_path / "cache", 8 * SHARE, 3, False)
    _, second = bytes_of_epochs([loader], tokens, http_proxy)
    assert second >= 0.5 * (BLOCKS // HOSTS) * BLOCK


def test_half_of_a_share_that_fits_is_not_asked_for(tmp_path: Path, http_proxy: FaultProxy) -> None:
    """Sixty-four blocks on one host, and room for 32: nearly a half of each later epoch comes from the cache."""
    tokens = corpus(tmp_path)
    data = loadax.from_tokens(
        f"{http_proxy.url}/x.bin",
        TOKENS - 1,
        stride=TOKENS,
        dtype="uint16",
        cache=tmp_path / "cache",
        cache_bytes=32 * (BLOCK + 4),
    ).shuffle(0, block=ROWS, lanes=2, window=2, pinned=True)
    loader = loadax.Dataloader(data, 64, num_epochs=2)
    first, second = bytes_of_epochs([loader], tokens, http_proxy)
    assert first == BLOCKS * BLOCK
    assert second <= 0.6 * first
