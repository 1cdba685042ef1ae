"""Object store in S3, or in a compatible service such as R2, MinIO or Ceph.

`registry` opens it for `s3://` URIs. `ObjectDeltas` stores deltas (changes of rows) in it, and `flush.object_queue` the
jobs of the flush queue. Needs boto3: `pip install 'lakesync[s3]'`.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from lakesync.adapters.object_store.base import ObjectInfo, ObjectPage, check_key
from lakesync.adapters.uri import BackendUri
from lakesync.model.errors import AdapterError, ConfigurationError, NotFoundError, extra

_OPTIONS = frozenset({"endpoint", "region", "access_key", "secret_key"})
"""Options of the URI."""
_NOT_FOUND_CODES = frozenset({"404", "NoSuchKey", "NotFound"})
"""Error codes for an object that does not exist; 404 for a request without a body."""
_PRECONDITION_FAILED = "PreconditionFailed"
"""Error code of a conditional write if the object exists."""
_CONFLICT = "ConditionalRequestConflict"
"""Error code of a conditional write while another one of the same key is in progress."""
_KEYS_PER_DELETE = 1000
"""Keys in one request, at most; S3's limit."""
_ATTEMPTS = 4
"""Attempts of a request, and of a conditional write that conflicts with a concurrent one, which is retried at once."""

_client_lock = threading.Lock()
"""Creating clients is not thread safe; using them is."""


class S3Objects:
    """The object store protocol `LakeAdapter` over a bucket, or a prefix of it; the protocol documents the methods."""

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
        """Create the client; it connects on the first call.

        Args:
            bucket: must exist.
            prefix: prepended to every key, without a trailing slash; empty for none.
            endpoint: URL of a service other than Amazon's, which gets path-style requests; None for Amazon's.
            region: None for the region of the environment.
            access_key: None for the credentials that boto3 finds (environment, files, instance role).
            secret_key: the secret of `access_key`.

        Raises:
            ConfigurationError: boto3 is not installed.
        """
        with extra("s3", "S3 needs boto3"):
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        self.bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._errors = (BotoCoreError, ClientError)
        self._client_error = ClientError
        config = Config(
            retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=16,
            s3={"addressing_style": "path"} if endpoint else {},
        )
        with _client_lock:
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
        """Open `s3://BUCKET/PREFIX?endpoint=…&region=…&access_key=…&secret_key=…`.

        Raises:
            ConfigurationError: the URI names no bucket, has an unknown option, or boto3 is not installed.
        """
        address = BackendUri.parse(uri, _OPTIONS)
        if not address.host:
            raise ConfigurationError(
                f"the adapter URI {uri.partition('?')[0]!r} names no bucket: write s3://BUCKET/PREFIX"
            )
        return cls(address.host, address.path.rstrip("/"), **address.options)

    def put_object(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Write a whole object; `if_absent` uses the store's If-None-Match."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with self._convert_errors(f"object {key!r} cannot be written"):
            for _ in range(_ATTEMPTS):
                try:
                    self._s3.put_object(Bucket=self.bucket, Key=self._key(key), Body=data, **condition)
                except self._client_error as error:
                    if _error_code(error) == _CONFLICT:
                        continue  # a concurrent request is in progress
                    if _error_code(error) != _PRECONDITION_FAILED:
                        raise
                    was_retried = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
                    return was_retried and self.get_object(key) == data  # boto3's first attempt may have succeeded
                return True
        raise AdapterError(
            f"object {key!r} cannot be written in bucket {self.bucket!r}: concurrent writers conflict; retry later"
        )

    def get_object(self, key: str) -> bytes:
        """Return an object's content."""
        with self._convert_errors(f"object {key!r} cannot be read", key):
            content: bytes = self._s3.get_object(Bucket=self.bucket, Key=self._key(key))["Body"].read()
        return content

    def head_object(self, key: str) -> ObjectInfo:
        """Return an object's metadata."""
        with self._convert_errors(f"object {key!r} cannot be read", key):
            found = self._s3.head_object(Bucket=self.bucket, Key=self._key(key))
        return _info(key, {**found, "Size": found["ContentLength"]})

    def list_objects(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> ObjectPage:
        """List objects whose key starts with `prefix` and is greater than `after`, in order."""
        found: list[ObjectInfo] = []
        start = self._prefix + after if after else ""
        with self._convert_errors("the objects cannot be listed"):
            while True:
                response = self._s3.list_objects_v2(
                    Bucket=self.bucket, Prefix=self._prefix + prefix, StartAfter=start, MaxKeys=limit - len(found)
                )
                keys = response.get("Contents", [])
                found += [_info(each["Key"].removeprefix(self._prefix), each) for each in keys]
                is_truncated = bool(response["IsTruncated"])
                if not is_truncated or len(found) >= limit or not keys:
                    return ObjectPage(tuple(found), has_more=is_truncated)
                start = keys[-1]["Key"]

    def delete_object(self, key: str) -> None:
        """Delete an object if it exists."""
        with self._convert_errors(f"object {key!r} cannot be removed"):
            self._s3.delete_object(Bucket=self.bucket, Key=self._key(key))

    def delete_objects(self, keys: Collection[str]) -> None:
        """Delete objects, a thousand per request."""
        objects = [{"Key": self._key(key)} for key in keys]
        with self._convert_errors(f"{len(objects)} objects cannot be removed"):
            for start in range(0, len(objects), _KEYS_PER_DELETE):
                chunk = {"Objects": objects[start : start + _KEYS_PER_DELETE], "Quiet": True}
                for failed in self._s3.delete_objects(Bucket=self.bucket, Delete=chunk).get("Errors", []):
                    raise AdapterError(
                        f"object {failed['Key']!r} cannot be removed in bucket {self.bucket!r}: {failed['Message']}"
                    )

    def close(self) -> None:
        """Close the connections."""
        self._s3.close()

    def _key(self, key: str) -> str:
        """Return a key in the bucket; raise ValidationError if `key` is invalid."""
        return self._prefix + check_key(key)

    @contextmanager
    def _convert_errors(self, what: str, key: str | None = None) -> Iterator[None]:
        """Raise errors of boto3 as AdapterError, or as NotFoundError if the object with a key is missing.

        Args:
            what: what failed, for the message.
            key: the key of the object that is read; None if nothing is read.
        """
        try:
            yield
        except self._errors as error:
            if key is not None and _error_code(error) in _NOT_FOUND_CODES:
                raise NotFoundError(f"there is no object {key!r} in bucket {self.bucket!r}") from None
            raise AdapterError(f"{what} in bucket {self.bucket!r}: {error}") from error


@cache
def _session() -> Any:
    """Return the process's boto3 session. Loading its description of S3 takes longer than a request."""
    import boto3

    return boto3.Session()


def _error_code(error: Any) -> str:
    """Return the store's error code; empty if it sent none."""
    code: str = getattr(error, "response", {}).get("Error", {}).get("Code", "")
    return code


def _info(key: str, found: dict[str, Any]) -> ObjectInfo:
    """Return an object's metadata from a listing's entry, or from a HEAD response in that form."""
    return ObjectInfo(key, found["Size"], int(found["LastModified"].timestamp() * 1000), found["ETag"].strip('"'))
