"""Starts moto's S3 with atomic conditional writes, which S3 has and moto lacks; runs in its own Python."""

import sys
from functools import wraps
from threading import Lock

from moto.s3.responses import S3Response
from moto.server import main

_one_at_a_time = Lock()
_put_object = S3Response.put_object


@wraps(_put_object)
def put_object(self):
    """A write; no other write happens between the condition and it."""
    with _one_at_a_time:
        return _put_object(self)


S3Response.put_object = put_object

sys.exit(main())
