"""Encrypted Parquet files: an error that says so, and how to read them."""

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyarrow.parquet import encryption

import loadax
from loadax.errors import SourceError
from tests.sources.advice import lines

TABLE = pa.table({"x": [1, 2], "y": [3, 4], "s": [{"a": 5, "b": 6}, {"a": 7, "b": 8}], "x.y": ["p", "q"]})
CONNECTION = encryption.KmsConnectionConfig()


class Keys(encryption.KmsClient):  # type: ignore[misc]
    def __init__(self, _config: Any):
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64decode(key)


FACTORY = encryption.CryptoFactory(Keys)


def write(path: Path, **options: Any) -> Path:
    config = encryption.EncryptionConfiguration(footer_key="f", **options)
    properties = FACTORY.file_encryption_properties(CONNECTION, config)
    with parquet.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE, row_group_size=1)
    return path


def decrypted(error: BaseException) -> Any:
    """What the advice gives, with the keys that it leaves to the user."""
    keys = FACTORY.file_decryption_properties(CONNECTION, encryption.DecryptionConfiguration())
    line = lines(str(error))[0].replace("decryption_properties=…", "decryption_properties=keys")
    return eval(line, {"loadax": loadax, "pyarrow": pa, "keys": keys})


@pytest.mark.parametrize(
    ("locked", "plain"), [(["x"], ["y", "s"]), (["s.b"], ["x", "x.y", "y"]), (["x.y"], ["x", "y", "s"])]
)
def test_files_with_encrypted_columns_are_read_by_pyarrow(tmp_path: Path, locked: list[str], plain: list[str]) -> None:
    path = write(tmp_path / "e.parquet", column_keys={"c": locked}, plaintext_footer=True)
    with pytest.raises(SourceError, match=rf"^{path}: some columns are encrypted, and loadax has no keys") as caught:
        loadax.from_parquet(path, columns=plain)
    assert int(decrypted(caught.value).read([1])["y"][0]) == 4
    others = lines(str(caught.value))[1].replace("[…]", repr(plain))
    assert set(eval(others, {"loadax": loadax, "pyarrow": pa})[1]) == set(plain)


@pytest.mark.parametrize("options", [{"uniform_encryption": True}, {"column_keys": {"c": ["x"]}}])
def test_encrypted_footers_are_named(tmp_path: Path, options: dict[str, Any]) -> None:
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    path = write(tmp_path / "b.parquet", **options)
    for columns in (None, ["y"]):
        with pytest.raises(SourceError, match=rf"^{path}: the file is encrypted, and loadax has no keys") as caught:
            loadax.from_parquet(tmp_path, columns=columns)
        assert "copy it again" not in str(caught.value)
        assert decrypted(caught.value).read([0, 1])["y"].tolist() == [3, 4]


def test_a_path_that_speaks_of_encryption_is_not_encrypted(tmp_path: Path) -> None:
    folder = tmp_path / "decrypted"
    folder.mkdir()
    (folder / "x.parquet").write_bytes(b"no table" * 20)
    with pytest.raises(SourceError, match=r"can't be read as Parquet: .*; copy it again"):
        loadax.from_parquet(folder)
