"""Verification of tokens: issuers, their keys, and the checks. Gateway and command line use it."""

from lakesync.auth.checks import CLOCK_SKEW_SECONDS, MAX_TOKEN_CHARS, Finding, Identity, TokenRejectedError
from lakesync.auth.issuers import EnterRule, Issuer, configured_issuers
from lakesync.auth.verifier import TokenVerifier

__all__ = [
    "CLOCK_SKEW_SECONDS",
    "MAX_TOKEN_CHARS",
    "EnterRule",
    "Finding",
    "Identity",
    "Issuer",
    "TokenRejectedError",
    "TokenVerifier",
    "configured_issuers",
]
