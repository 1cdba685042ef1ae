"""The checks that a client's token must pass, in their order, and the identity that a token gives its bearer.

A token is a JWT: a header, claims (the payload) and a signature. Its *issuer* signed it: a login provider, the
project's own backend, or the server with its own secret. The settings of the issuer (`Issuer`) say which keys and
claims are valid. A claim in nested objects is named by its path, such as `app_metadata.team`.

`TokenVerifier` runs the checks on each new token that a gateway server receives. `lakesync token inspect` lists their
results. A *gateway* is one app's stream of changes on the server; a token admits its bearer to some of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jwt
import msgspec

from lakesync.auth.issuers import Issuer, admits, flatten_claims, rule_claims, string_values
from lakesync.auth.keys import ALGORITHMS, MAX_KEYS_TRIED, Key, KeySet
from lakesync.model.errors import AuthError
from lakesync.model.types import Claims
from lakesync.model.validation import check_id, is_importer, user_of

Role = Literal["client", "admin"]
"""What the bearer of a token may do; only an admin may call the routes under `/admin`."""

MAX_TOKEN_CHARS = 8192
"""Longer tokens are rejected without being decoded."""
CLOCK_SKEW_SECONDS = 5
"""By how much an issuer's clock may be ahead: a token is accepted this long before its `iat` and `nbf`."""
MAX_TIME_SECONDS = 253_402_300_799
"""The last second of the year 9999. A later `exp`, `nbf` or `iat` is rejected: it is probably in milliseconds."""
_QUOTED_CHARS = 60
"""The length of a value in an error message."""
_DEFAULT_GATEWAY_CLAIM = "gw"
"""The claim with the gateway id, unless the issuer's settings name another."""
_ABSENT = object()
"""In place of a claim that the token lacks, because a claim may be null."""


class TokenRejectedError(AuthError):
    """A token failed a check. The message names the check and contains no secret, key or signature."""

    def __init__(self, check: str, message: str, stale: Sequence[KeySet] = ()) -> None:
        """Create the error.

        Args:
            check: one of `CHECKS`, or `form` (it is not a JWT) or `issuer` (no issuer has its `iss`).
            message: what is wrong, and what to do.
            stale: key sets without the key that signed the token. Their issuer may have a new key: refresh and retry.
        """
        super().__init__(f"the token fails the check '{check}': {message}")
        self.check = check
        self.reason = message
        self.stale = tuple(stale)


class Identity(msgspec.Struct, frozen=True):
    """What a verified token says about its bearer."""

    client_id: str
    gateways: tuple[str, ...]
    """The ids of the gateways that the bearer may use. Empty if the issuer's setting `enter`, a list of gateways with
    conditions, admits the token to none."""
    role: Role
    claims: Claims
    """Strings and lists of strings by path, for sync rules (`jwt:PATH`). `sub` is the client id."""
    expires: float
    """The token's expiry, in seconds since 1970."""
    key: Key
    """The key that signed the token."""


class Finding(NamedTuple):
    """The result of one check, for `lakesync token inspect`."""

    check: str
    state: Literal["ok", "failed", "skipped"]
    """A check is skipped if its prerequisite did not succeed."""
    detail: str
    """What was found, or what is wrong."""


class TokenChecks:
    """Runs the checks of `CHECKS` on one token, with the settings of one issuer.

    Call either `identity` or `findings`, once. A check stores what it derives, such as the client id, for later checks
    and for `identity`.
    """

    def __init__(self, parts: TokenParts, issuer: Issuer, now: float, sole_gateway: str | None) -> None:
        """Prepare the checks.

        Args:
            parts: the token, decoded but not verified.
            issuer: the issuer whose settings apply.
            now: the time in seconds since 1970.
            sole_gateway: the id of the server's only gateway, which tokens need not name; None if it may have several.
        """
        self._parts = parts
        self._issuer = issuer
        self._now = now
        self._sole_gateway = sole_gateway
        self._payload = parts.payload
        self._claims = flatten_claims(parts.payload)
        self._candidates: Sequence[Key] = ()
        self._key: Key | None = None
        self._client_id = ""
        self._role: Role = "client"
        self._gateways: tuple[str, ...] = ()
        self._rule_claims: Claims = {}

    def identity(self) -> Identity:
        """Return what the token says, after all checks.

        Raises:
            TokenRejectedError: the token fails a check.
        """
        for check, _ in CHECKS:
            getattr(self, f"_check_{check}")()
        assert self._key is not None
        expires = float(self._payload["exp"])
        return Identity(self._client_id, self._gateways, self._role, self._rule_claims, expires, self._key)

    def findings(self) -> Iterator[Finding]:
        """Yield the result of every check. A check is skipped if its prerequisite failed or was skipped."""
        not_ok: set[str] = set()
        for check, prerequisite in CHECKS:
            if prerequisite in not_ok:
                not_ok.add(check)
                yield Finding(check, "skipped", f"needs the check '{prerequisite}'")
                continue
            try:
                yield Finding(check, "ok", getattr(self, f"_check_{check}")())
            except TokenRejectedError as error:
                not_ok.add(check)
                yield Finding(check, "failed", error.reason)

    # Each check returns a finding's detail, or raises TokenRejectedError.

    def _check_algorithm(self) -> str:
        """Check that the issuer signs with the header's `alg`, so that the token cannot choose how it is verified."""
        algorithm = self._parts.header.get("alg")
        if algorithm not in self._issuer.algorithms:
            what = f"its alg is {quote(algorithm)}" if algorithm in ALGORITHMS else "its alg is not supported"
            signs = f"this issuer signs with {', '.join(self._issuer.algorithms)}"
            raise TokenRejectedError("algorithm", f"{what}; {signs}{self._hint_at_issuer()}")
        return str(algorithm)

    def _check_key(self) -> str:
        """Collect the keys that may have signed the token: those of its algorithm that have no other `kid` (key id)."""
        kid, algorithm = self._parts.header.get("kid"), self._parts.header["alg"]
        if kid is not None and not isinstance(kid, str):
            raise TokenRejectedError("key", "its kid is not a string")
        keys = [key for key in self._issuer.key_set.keys if key.algorithm == algorithm]
        self._candidates = [key for key in keys if kid is None or key.kid is None or key.kid == kid]
        if not keys:
            raise self._key_error("key", f"no key of the issuer is known for {algorithm}")
        if not self._candidates:
            known = f"the {len(keys)} keys of the issuer that are known for {algorithm}"
            raise self._key_error("key", f"its kid {quote(kid)} is not among {known}")
        if len(self._candidates) > MAX_KEYS_TRIED:
            what = f"{len(self._candidates)} keys of the issuer may have signed it; at most {MAX_KEYS_TRIED} are tried"
            raise TokenRejectedError("key", f"{what}; its issuer must set a kid in each key and token")
        is_known = kid is not None and any(key.kid == kid for key in self._candidates)
        return f"{quote(kid)} is a key of the issuer" if is_known else f"{len(self._candidates)} to try"

    def _check_signature(self) -> str:
        """Find the key that signed the token."""
        signatures = jwt.PyJWS(algorithms=[self._parts.header["alg"]])
        for key in self._candidates:
            try:
                signatures.decode_complete(self._parts.token, key.material, [key.algorithm])
            except jwt.InvalidSignatureError:
                continue
            except (jwt.PyJWTError, RecursionError, ValueError, TypeError) as error:
                raise TokenRejectedError("signature", f"it cannot be verified: {str(error)[:100]}") from error
            self._key = key
            return f"by {key.algorithm}"
        what = f"another key signed it, or it was changed; request a new one{self._hint_at_issuer()}"
        raise self._key_error("signature", what)

    def _hint_at_issuer(self) -> str:
        """Return the end of a message about a token's signer, if the token's `iss` selected the server's own secret.

        It repeats only the token's `iss`: the list of issuers would show any caller who the server's tenants are.
        """
        iss = self._payload.get("iss")
        if self._issuer.issuer is not None or iss is None:
            return ""
        return (
            f". Its iss {quote(iss)} is not an issuer of this gateway, so the server's own secret must have signed it"
        )

    def _key_error(self, check: str, message: str) -> TokenRejectedError:
        """Return the error of a token that no known key signed. The issuer may have a new key, even with a known kid.

        Args:
            check: the check that fails.
            message: what is wrong.
        """
        return TokenRejectedError(check, message, [self._issuer.key_set] if self._issuer.is_refreshable else [])

    def _check_audience(self) -> str:
        """Check `aud` as the issuer's `audience` requires: ignored, absent, or one of some values."""
        if self._issuer.audience is None:
            return "not checked"
        audiences = string_values(self._payload.get("aud", []))
        if audiences is None:
            raise TokenRejectedError("audience", "its aud is neither a string nor a list of strings")
        if not self._issuer.audience and audiences:
            raise TokenRejectedError(
                "audience", f"its aud is {quote(audiences[0])}, and no audience is configured for its issuer"
            )
        if self._issuer.audience and self._issuer.audience.isdisjoint(audiences):
            what = f"its aud is {quote(audiences[0])}" if audiences else "it has no aud"
            raise TokenRejectedError("audience", f"{what}; it must be {quote(min(self._issuer.audience))}")
        return quote(audiences[0]) if audiences else "none is required"

    def _check_exp(self) -> str:
        """Check that the token has an expiry time, and that it is in the future."""
        expires = self._time("exp")
        if expires is None:
            raise TokenRejectedError("exp", "it has no exp; issue tokens that expire")
        if expires <= self._now:
            raise TokenRejectedError("exp", f"it expired {self._now - expires:.0f} s ago; request a new one")
        return f"expires in {expires - self._now:.0f} s"

    def _check_nbf(self) -> str:
        """Check that the time before which the token is not valid, if it has one, has passed."""
        return self._check_start("nbf")

    def _check_iat(self) -> str:
        """Check that the time of issue, if there is one, is not in the future."""
        return self._check_start("iat")

    def _check_start(self, name: str) -> str:
        """Check that the time in a claim has passed; `nbf` and `iat` are optional."""
        start = self._time(name)
        if start is None:
            return "not given"
        if start > self._now + CLOCK_SKEW_SECONDS:
            ahead = f"its {name} is {start - self._now:.0f} s in the future"
            raise TokenRejectedError(name, f"it is not yet valid: {ahead}; compare the clocks of issuer and gateway")
        return f"{max(0.0, self._now - start):.0f} s ago"

    def _check_require(self) -> str:
        """Check the claims that the issuer's setting `require` names."""
        for path, accepted in self._issuer.require.items():
            claim = self._claims.get(path, _ABSENT)
            if accepted.isdisjoint(string_values(claim) or ()):
                what = f"it lacks {quote(path)}" if claim is _ABSENT else f"{quote(path)} is {quote(claim)}"
                raise TokenRejectedError("require", f"{what}; the claim must be {quote(min(accepted, default=''))}")
        return ", ".join(self._issuer.require) or "nothing is required"

    def _check_client(self) -> str:
        """Derive the client id, and check that it is valid and not reserved."""
        path = self._issuer.client_claim
        claim = self._claims.get(path)
        if not isinstance(claim, str) or not claim:
            raise TokenRejectedError("client", f"its claim {quote(path)} must be a string that is not empty")
        client = self._issuer.client_prefix + claim
        fault = check_id(f"its {path}", client)
        if fault is None and is_importer(client):
            fault = f"its {path} is {quote(client)}, which is reserved for imports; use {quote(user_of(client))}"
        if fault is not None:
            raise TokenRejectedError("client", fault)
        self._client_id = client
        return client

    def _check_role(self) -> str:
        """Derive the role: `admin` if the role claim contains one of the issuer's admin roles, else `client`."""
        path = self._issuer.role_claim
        claim = self._claims.get(path, "client") if path is not None else "client"
        roles = string_values(claim)
        if self._issuer.strict_roles and claim not in ("client", "admin"):
            raise TokenRejectedError("role", f"its {path} is {quote(claim)}; it must be 'client' or 'admin'")
        self._role = "admin" if roles is not None and not self._issuer.admin_roles.isdisjoint(roles) else "client"
        return self._role

    def _check_gateway(self) -> str:
        """Derive the gateways that the bearer may use: those that the token names and that `enter`, if set, admits.

        The default claim `gw` may be absent if `enter` is set, which then decides alone, or if the server has only one
        gateway, which is then meant.
        """
        path, enter = self._issuer.gateway_claim or _DEFAULT_GATEWAY_CLAIM, self._issuer.enter
        is_default = self._issuer.gateway_claim is None
        claim = self._claims.get(path, _ABSENT)
        admitted = tuple(dict.fromkeys(rule.gateway for rule in enter if admits(rule, self._claims)))
        if claim is _ABSENT:
            may_be_absent = is_default and (enter or self._sole_gateway is not None)
            if not may_be_absent:
                raise TokenRejectedError("gateway", f"it lacks the claim {quote(path)}, which names its gateway")
            self._gateways = admitted if enter else (str(self._sole_gateway),)
        else:
            named = string_values(claim)
            if not named or not all(named) or (is_default and not isinstance(claim, str)):
                form = "a string that is not empty" if is_default else "a gateway id, or a list of them"
                raise TokenRejectedError("gateway", f"its claim {quote(path)} must be {form}")
            self._gateways = tuple(gateway for gateway in named if not enter or gateway in admitted)
        return ", ".join(self._gateways[:10]) or "none: no entry of `enter` admits it"

    def _check_claims(self) -> str:
        """Collect the claims that sync rules can read, and check that they are valid Unicode."""
        claims = rule_claims(self._claims)
        try:
            msgspec.json.encode([claims, self._client_id])
        except UnicodeEncodeError as error:
            raise TokenRejectedError("claims", "a claim contains a lone surrogate: not valid Unicode") from error
        self._rule_claims = {**claims, "sub": self._client_id}
        return f"{len(claims)} claims for rules"

    def _time(self, name: str) -> float | None:
        """Return the time in a claim, in seconds since 1970; None if the token lacks the claim."""
        value = self._payload.get(name, _ABSENT)
        if value is _ABSENT:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_TIME_SECONDS:
            raise TokenRejectedError(name, f"its {name} must be a number of seconds since 1970, before the year 10000")
        return float(value)


CHECKS: tuple[tuple[str, str | None], ...] = (
    ("algorithm", None),
    ("key", "algorithm"),
    ("signature", "key"),
    ("audience", None),
    ("exp", None),
    ("nbf", None),
    ("iat", None),
    ("require", None),
    ("client", None),
    ("role", None),
    ("gateway", None),
    ("claims", "client"),
)
"""Each check, in order, and its prerequisite: a check whose result it needs. None: it needs none.

`TokenChecks._check_NAME` implements the check.
"""


class TokenParts(NamedTuple):
    """A token, decoded but not verified."""

    token: str
    """The encoded token."""
    header: Mapping[str, Any]
    payload: Mapping[str, Any]
    """The claims."""


def decode_parts(token: str) -> TokenParts:
    """Decode a token without verifying it.

    Raises:
        TokenRejectedError: the token is not a JWT, or too long.
    """
    if len(token) > MAX_TOKEN_CHARS:
        raise TokenRejectedError("form", f"it has {len(token)} characters; at most {MAX_TOKEN_CHARS} are accepted")
    try:
        unverified = jwt.PyJWS().decode_complete(token, options={"verify_signature": False})
        payload = json.loads(unverified["payload"])
    except (jwt.PyJWTError, RecursionError, ValueError) as error:
        raise TokenRejectedError("form", f"it is not a JWT: {str(error)[:100]}") from error
    if not isinstance(payload, dict):
        raise TokenRejectedError("form", "it is not a JWT: its payload is not a JSON object")
    return TokenParts(token, unverified["header"], payload)


def quote(value: object) -> str:
    """Return a value as error messages show it, shortened."""
    text = repr(value)
    return text if len(text) <= _QUOTED_CHARS else f"{text[:_QUOTED_CHARS]}…"
