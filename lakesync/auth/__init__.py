"""Verification of clients' tokens (JWTs): issuers, their keys, and the checks.

The gateway server verifies each request's token by it; `lakesync token inspect` and `lakesync doctor` examine tokens
and issuers.
"""

from lakesync.auth.checks import CLOCK_SKEW_SECONDS, MAX_TOKEN_CHARS, Finding, Identity, TokenRejectedError
from lakesync.auth.issuers import Issuer, configured_issuers
from lakesync.auth.verifier import TokenVerifier

__all__ = [
    "CLOCK_SKEW_SECONDS",
    "MAX_TOKEN_CHARS",
    "Finding",
    "Identity",
    "Issuer",
    "TokenRejectedError",
    "TokenVerifier",
    "configured_issuers",
]
