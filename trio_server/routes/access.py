"""Who may use the API: the key, CORS, and the check against rebinding. Sections 4 and 5 of the chat page.

Pure functions over header values; `app.py` calls them around every request.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Sequence

from trio_server.config import comma_list, split_address
from trio_server.wire import errors
from trio_server.wire.errors import ApiError

ALLOWED_METHODS = "GET, POST, PATCH, OPTIONS"
EXPOSED_HEADERS = "Retry-After, X-Request-Id"
_ALWAYS_ALLOWED = ("Content-Type", "Authorization")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


def check_key(expected: str, authorization: Sequence[str]) -> None:
    """Raise the 401 unless `authorization`, every `Authorization` header sent, is one bearer credential equal to `expected`."""
    if len(authorization) > 1:
        raise _refused("more than one Authorization header was sent; send one")
    scheme, _, credential = (authorization[0] if authorization else "").strip().partition(" ")
    credential = credential.strip()
    if scheme.lower() != "bearer" or not credential:
        raise _refused("no API key was provided; send it as 'Authorization: Bearer <key>'")
    # Digests have one length and are bytes, so neither content nor length shows in the time this takes.
    if not hmac.compare_digest(_digest(credential), _digest(expected)):
        raise _refused("incorrect API key provided")


def _refused(message: str) -> ApiError:
    return ApiError(errors.INVALID_API_KEY, message, headers=_CHALLENGE)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def allowed_origin(setting: str, origin: str | None) -> str | None:
    """The value of `Access-Control-Allow-Origin`, or `None` for no CORS headers. `setting` is `server.cors_origins`."""
    if setting == "*":
        return "*"
    if origin is None or setting.strip().lower() == "none":
        return None
    return origin if origin.lower() in (entry.lower() for entry in comma_list(setting)) else None


def cors_headers(setting: str, origin: str | None) -> list[tuple[str, str]]:
    """The CORS headers of an ordinary answer, an error or a stream."""
    allowed = allowed_origin(setting, origin)
    headers = [] if setting == "*" else [("Vary", "Origin")]
    if allowed is not None:
        headers.append(("Access-Control-Allow-Origin", allowed))
        headers.append(("Access-Control-Expose-Headers", EXPOSED_HEADERS))
    return headers


def preflight_headers(requested: Iterable[str], *, private_network: bool) -> list[tuple[str, str]]:
    """What a preflight's answer has beyond `cors_headers`; `requested` is each `Access-Control-Request-Headers` value."""
    names = list(_ALWAYS_ALLOWED)
    known = {name.lower() for name in names}
    for value in requested:
        for name in (part.strip() for part in value.split(",")):
            if _TOKEN.fullmatch(name) and name.lower() not in known:
                known.add(name.lower())
                names.append(name)
    headers = [
        ("Access-Control-Allow-Methods", ALLOWED_METHODS),
        ("Access-Control-Allow-Headers", ", ".join(names)),
        ("Access-Control-Max-Age", "600"),
        ("Vary", "Access-Control-Request-Headers"),
    ]
    if private_network:
        headers.append(("Access-Control-Allow-Private-Network", "true"))
    return headers


def check_host(host: str, bind: str, extra: str | None) -> None:
    """Raise the 403 for a `Host` that no client of a loopback server would send: a rebound name of a hostile page.

    `extra` is `server.allowed_hosts`. A missing or empty `Host` passes: browsers always send one.
    """
    if not host or extra == "*":
        return
    name = _host_name(host)
    if name == "localhost" or name.endswith(".localhost") or _is_loopback(name):
        return
    accepted = {split_address(bind)[0].lower()} | {entry.lower() for entry in comma_list(extra or "")}
    if name not in accepted:
        raise ApiError(
            errors.HOST_REFUSED,
            "this server does not answer to that Host name; start it with --server-allowed-hosts to add one",
        )


def _host_name(host: str) -> str:
    """`name:port` or `[v6]:port` without the port, in lower case, without a final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
