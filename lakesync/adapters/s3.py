"""Objects in S3, and in what speaks like it: R2, MinIO, Ceph.

Needs boto3: `pip install 'lakesync[s3]'`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from lakesync.adapters.keys import check_key
from lakesync.adapters.object_store import ObjectInfo, ObjectPage
from lakesync.adapters.uri import Address
from lakesync.model.errors import AdapterError, ConfigurationError, NotFoundError
from lakesync.model.optional_imports import extra
from lakesync.model.secret_references import KINDS, follow

_OPTIONS = frozenset({"endpoint", "region", "access_key", "secret_key"})
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
_THERE = "PreconditionFailed"
_CROSSED = "ConditionalRequestConflict"
_DELETED_AT_ONCE = 1000
_TRIES = 4

_making = threading.Lock()
"""Clients are safe between threads, what makes them is not."""


@cache
def _session() -> Any:
    """What reads boto3's description of S3, which takes longer than a request: once a process."""
    import boto3

    return boto3.Session()


class S3Objects:
    """`LakeAdapter` over a bucket, or what lies under one prefix of it."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        """Nothing is asked of the store before the first call.

        Args:
            bucket: is there already.
            prefix: before every key, without a slash at its end; empty: none.
            endpoint: of another store than Amazon's; keys then stand in the path.
            region: unless the environment names it.
            access_key: and
            secret_key: unless boto3 finds credentials by itself: in the environment, its files, or the machine's role.

        Raises:
            ConfigurationError: boto3 is not installed.
        """
        with extra("s3", "S3 needs boto3"):
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        self.bucket = bucket
        self._before = f"{prefix}/" if prefix else ""
        self._errors = (BotoCoreError, ClientError)
        self._refused = ClientError
        config = Config(
            retries={"max_attempts": _TRIES, "mode": "standard"},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=16,
            s3={"addressing_style": "path"} if endpoint else {},
        )
        with _making:
            self._s3 = _session().client(
                "s3",
                endpoint_url=endpoint,
                region_name=region,
                aws_access_key_id=access_key,
                aws_secret_access_key=secret_key,
                config=config,
            )

    @classmethod
    def of(cls, uri: str) -> S3Objects:
        """`s3://BUCKET/PREFIX?endpoint=…&region=…&access_key=…&secret_key=…`; keys may be references, `env:NAME`.

        Raises:
            ConfigurationError: it names no bucket, has an option that is not known, or boto3 is not installed.
        """
        address = Address.of(uri, _OPTIONS)
        if not address.host:
            raise ConfigurationError(
                f"the adapter URI {uri.partition('?')[0]!r} names no bucket: write s3://BUCKET/PREFIX"
            )
        given = {
            name: follow(f"{name} of {address.host}", value, Path()) if value.startswith(KINDS) else value
            for name, value in address.options.items()
        }
        return cls(address.host, address.path.rstrip("/"), **given)

    def put_object(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write an object whole; `if_absent` is the store's own If-None-Match."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._told(f"object {key!r} cannot be written"):
            for _ in range(_TRIES):
                try:
                    self._s3.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)
                except self._refused as error:
                    if _code(error) == _CROSSED:
                        continue  # another writer's request was under way
                    if _code(error) != _THERE:
                        raise
                    again = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                    return again and self.get_object(key) == data  # our own first try, whose answer was lost
                return True
        raise AdapterError(f"object {key!r} cannot be written in bucket {self.bucket!r}: others write it all the time")

    def get_object(self, key: str) -> bytes:
        """An object's content."""
        with self._told(f"object {key!r} cannot be read", key):
            content: bytes = self._s3.get_object(Bucket=self.bucket, Key=self._key(key))["Body"].read()
        return content

    def head_object(self, key: str) -> ObjectInfo:
        """An object without its content."""
        with self._told(f"object {key!r} cannot be read", key):
            found = self._s3.head_object(Bucket=self.bucket, Key=self._key(key))
        return _info(key, {**found, "Size": found["ContentLength"]})

    def list_objects(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> ObjectPage:
        """Objects whose key starts with `prefix` and is above `after`, in order."""
        found: list[ObjectInfo] = []
        start = self._before + after if after else ""
        with self._told("the objects cannot be listed"):
            while True:
                answer = self._s3.list_objects_v2(
                    Bucket=self.bucket, Prefix=self._before + prefix, StartAfter=start, MaxKeys=limit - len(found)
                )
                keys = answer.get("Contents", [])
                found += [_info(each["Key"].removeprefix(self._before), each) for each in keys]
                more = bool(answer["IsTruncated"])
                if not more or len(found) >= limit or not keys:
                    return ObjectPage(tuple(found), more=more)
                start = keys[-1]["Key"]

    def delete_object(self, key: str) -> None:
        """Remove an object; nothing when it is not there."""
        with self._told(f"object {key!r} cannot be removed"):
            self._s3.delete_object(Bucket=self.bucket, Key=self._key(key))

    def delete_objects(self, keys: Collection[str]) -> None:
        """Remove objects, a thousand at a time."""
        wanted = [{"Key": self._key(key)} for key in keys]
        with self._told(f"{len(wanted)} objects cannot be removed"):
            for start in range(0, len(wanted), _DELETED_AT_ONCE):
                some = {"Objects": wanted[start : start + _DELETED_AT_ONCE], "Quiet": True}
                for failed in self._s3.delete_objects(Bucket=self.bucket, Delete=some).get("Errors", []):
                    raise AdapterError(
                        f"object {failed['Key']!r} cannot be removed in bucket {self.bucket!r}: {failed['Message']}"
                    )

    def close(self) -> None:
        """Release the connections."""
        self._s3.close()

    def _key(self, key: str) -> str:
        return self._before + check_key(key)

    @contextmanager
    def _told(self, what: str, key: str | None = None) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            if key is not None and _code(error) in _ABSENT:
                raise NotFoundError(f"there is no object {key!r} in bucket {self.bucket!r}") from None
            raise AdapterError(f"{what} in bucket {self.bucket!r}: {error}") from error


def _code(error: Any) -> str:
    """The store's word for what went wrong; empty where it said nothing."""
    told: str = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    return told


def _info(key: str, found: dict[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, found["Size"], int(found["LastModified"].timestamp() * 1000), found["ETag"].strip('"'))
