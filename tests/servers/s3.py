"""The S3 protocol on this machine."""

import itertools
from pathlib import Path
from typing import Any, final

import boto3  # type: ignore[import-untyped]

from tests.servers.child import ChildServer

KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",  # otherwise clients look for credentials at an address outside this machine
}


@final
class S3Server:
    """A moto server in a process of its own; what it holds, it holds in memory.

    Attributes:
        url: the endpoint; buckets are the first part of its paths.
    """

    def __init__(self) -> None:
        self._server = ChildServer(
            lambda port: ["-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], "/moto-api/data.json"
        )
        self.url = self._server.url
        self._numbers = itertools.count()
        self._client: Any = boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a client's environment must hold; `endpoint`: of a proxy before this server."""
        return {**KEYS, "AWS_ENDPOINT_URL": endpoint or self.url}

    def bucket(self) -> str:
        """A new, empty bucket."""
        name = f"bucket-{next(self._numbers)}"
        self._client.create_bucket(Bucket=name)
        return name

    def upload(self, folder: Path, bucket: str, prefix: str = "") -> None:
        """Copies the files below `folder` to keys that begin with `prefix`, which needs its own slash at the end."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._client.put_object(
                    Bucket=bucket, Key=prefix + path.relative_to(folder).as_posix(), Body=path.read_bytes()
                )

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Makes an object."""
        self._client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        """Takes an object away."""
        self._client.delete_object(Bucket=bucket, Key=key)

    def close(self) -> None:
        """Ends the server."""
        self._client.close()
        self._server.close()
