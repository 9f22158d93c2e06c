"""Datasets and buckets of the Hugging Face Hub, on a local server that speaks its API; R2 and Azure by their URLs."""

import json
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from loadax import from_jsonl, from_npy, from_objects, from_parquet
from loadax.errors import SourceError, StorageError
from loadax.files.object_stores import open_object_store, split_url
from tests.servers.web import Asked, Sent, WebServer

pytest_plugins = ["tests.servers.fixtures"]
pytestmark = pytest.mark.servers

_PAGE = 2  # entries of a list
_ROOTS = ("datasets/me/words/main", "datasets/me/words/refs/convert/parquet", "buckets/me/store")


def parquet_file(begin: int) -> bytes:
    file = BytesIO()
    parquet.write_table(pa.table({"x": np.arange(begin, begin + 10)}), file)
    return file.getvalue()


def npy_file(begin: int) -> bytes:
    file = BytesIO()
    np.save(file, np.arange(begin, begin + 4))
    return file.getvalue()


FILES = {
    "README.md": b"words",
    "train/0.parquet": parquet_file(0),
    "train/1.parquet": parquet_file(10),
    "train/deep/2 %.parquet": parquet_file(20),
    "lines.jsonl": b'{"x": 1}\n{"x": 2}\n',
    "a/0.npy": npy_file(0),
    "a/1.npy": npy_file(4),
}


class Hub:
    """Lists page by page, and sends readers on to another server, as the Hub does to its content network."""

    def __init__(self) -> None:
        self.content = WebServer(self._serve)
        self.api = WebServer(self._answer)
        self.failing = 0
        self.following = self.api.url  # where the next page of a list is

    def close(self) -> None:
        self.api.close()
        self.content.close()

    def _serve(self, asked: Asked) -> Sent:
        content = FILES[unquote(asked.path[1:])]
        begin, end = asked.cut(content)
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}", "ETag": f'"{hash(content)}"'}
        return Sent(206, content[begin:end], headers)

    def _answer(self, asked: Asked) -> Sent:
        if asked.authorization != "Bearer secret":
            return Sent(401)
        if self.failing:
            self.failing -= 1
            return Sent(429)
        parts = urlsplit(asked.path)
        path = unquote(parts.path)
        for root in _ROOTS:
            kind, owner, name, *revision = root.split("/")
            repository = f"{kind}/{owner}/{name}"
            tree = "/".join([f"/api/{repository}/tree", *revision])
            resolve = "/".join([f"/{repository}/resolve", *revision])
            if path.startswith(resolve):
                key = path[len(resolve) + 1 :]
                known = key in FILES
                place = f"{self.content.url}/{'/'.join(parts.path.split('/')[-key.count('/') - 1 :])}"
                return Sent(302, headers={"Location": place}) if known else Sent(404)
            if path == tree or path.startswith(f"{tree}/"):
                return self._listed(tree, path[len(tree) + 1 :], parse_qs(parts.query), parts.path)
        return Sent(404)

    def _listed(self, tree: str, folder: str, query: dict[str, list[str]], path: str) -> Sent:
        below = f"{folder}/" if folder else ""
        entries = []
        for key, content in FILES.items():
            if key.startswith(below):
                name, slash, _ = key[len(below) :].partition("/")
                if query["recursive"] == ["true"]:
                    entries.append({"type": "file", "path": key, "size": len(content)})
                entries.append({"type": "directory" if slash else "file", "path": below + name})
        entries = list({entry["path"]: entry for entry in entries}.values())
        cursor = int(query.get("cursor", ["0"])[0])
        headers = {}
        if cursor + _PAGE < len(entries):
            recursive = query["recursive"][0]
            more = f"{self.following}{path}?recursive={recursive}&cursor={cursor + _PAGE}"
            headers["Link"] = f'<{more}>; rel="next"'
        return Sent(200, json.dumps(entries[cursor : cursor + _PAGE]).encode(), headers)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with closing(Hub()) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.api.url)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield server


def values(data: Any) -> list[int]:
    return np.ravel(
        [row["x"] if isinstance(row, dict) else row for row in (data[i] for i in range(len(data)))]
    ).tolist()


@pytest.mark.parametrize("root", ["datasets/me/words", "datasets/me/words@refs/convert/parquet", "buckets/me/store"])
def test_files_folders_and_patterns_of_the_hub(hub: Hub, root: str) -> None:
    assert values(from_parquet(f"hf://{root}/train/0.parquet")) == [*range(10)]
    assert values(from_parquet(f"hf://{root}/train")) == [*range(20)]
    assert values(from_parquet(f"hf://{root}/train/*.parquet")) == [*range(20)]
    assert values(from_parquet(f"hf://{root}/**/*.parquet")) == [*range(30)]
    assert values(from_jsonl(f"hf://{root}/lines.jsonl")) == [1, 2]
    assert values(from_npy(f"hf://{root}/a/*.npy")) == [*range(8)]
    assert from_objects(f"hf://{root}/a")[1]["bytes"] == FILES["a/1.npy"]
    assert all(asked.authorization is None for asked in hub.content.log), "the token stays with the Hub"


def test_a_page_of_a_list_on_another_server_is_refused(hub: Hub) -> None:
    hub.following = hub.content.url
    with pytest.raises(StorageError, match=r"the Hub names http://127.* as the next page .*, which is on another ser"):
        from_parquet("hf://datasets/me/words/**/*.parquet")
    assert not hub.content.log


def test_limited_listing_is_repeated(hub: Hub) -> None:
    hub.failing = 1
    assert len(from_parquet("hf://datasets/me/words/train/")) == 20


def test_token_of_the_login_file(hub: Hub, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(StorageError, match=r"hf://datasets/me/words/train/: .*401.*; access was refused: check the"):
        from_parquet("hf://datasets/me/words/train/")
    (tmp_path / "token").write_text("secret\n")
    assert len(from_parquet("hf://datasets/me/words/train/")) == 20


@pytest.mark.parametrize("location", ["hf://datasets/me", "hf://me/words/a.npy", "hf://buckets/me/store@main/a.npy"])
def test_other_addresses_of_the_hub_are_refused(location: str) -> None:
    with pytest.raises(SourceError, match=r"files of the Hub are at hf://datasets/OWNER/NAME/PATH, hf://datasets/.*"):
        from_npy(location)


def test_missing_file_of_the_hub(hub: Hub) -> None:
    with pytest.raises(SourceError, match=r"hf://datasets/me/words/none.npy.*: there is no such file"):
        from_npy("hf://datasets/me/words/none.npy")


def test_r2_is_s3_with_the_endpoint_of_an_account(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"r2://{bucket}"
    store = open_object_store(url)
    store.put("a/0.npy", npy_file(0))
    store.put("a/1.npy", npy_file(4))
    assert values(from_npy(f"{url}/a/*.npy")) == [*range(8)]
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SourceError, match=r"set CLOUDFLARE_ACCOUNT_ID, or AWS_ENDPOINT_URL to the endpoint"):
        open_object_store(url)
    monkeypatch.setenv("CLOUDFLARE_ACCOUNT_ID", "abc")
    assert open_object_store(url).config["endpoint"] == "https://abc.r2.cloudflarestorage.com"


def test_azure_urls_name_container_and_account(monkeypatch: pytest.MonkeyPatch) -> None:
    url, key = split_url("abfss://things@mine.dfs.core.windows.net/a/b.npy")
    assert key == "a/b.npy"
    store = open_object_store(url)
    assert (store.config["container_name"], store.config["account_name"]) == ("things", "mine")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    assert open_object_store("abfs://things").config["container_name"] == "things"
