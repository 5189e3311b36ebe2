"""Group `server`: the listener, who may come in, and what bounds a request from outside."""

from __future__ import annotations

from dataclasses import dataclass

from trio_server.config.declaration import Group, declare
from trio_server.config.kinds import ADDRESS, COUNT, HOSTS, KEY, ORIGINS, POLICY, SECONDS
from trio_server.config.rules import OneOf, Range


@dataclass(frozen=True, slots=True, repr=False)
class Server(Group):
    bind: str = declare(
        kind=ADDRESS,
        default="127.0.0.1:8000",
        visible=True,
        description="The API's listener.",
        detail="Port 0 takes a free port and prints it. IPv6 as `[::1]:8000`.",
    )
    api_key: str | None = declare(
        kind=KEY,
        default=None,
        secret=True,
        description="Every `/v1` request must carry it as `Authorization: Bearer`.",
        detail="`auto` makes one at start (`sk-trio-` and 64 hex digits) and prints it once, the only time a key is"
        " printed. Unset: the API is open.",
    )
    request_timeout: int = declare(
        kind=SECONDS,
        default=30,
        rule=Range(1, 3600),
        visible=True,
        patchable=True,
        description="The deadline of a non-streaming request; past it, 504 `request_timeout`.",
    )
    shutdown_grace: int = declare(
        kind=SECONDS,
        default=10,
        rule=Range(0, 3600),
        visible=True,
        patchable=True,
        description="After SIGTERM or SIGINT: how long running requests may still finish before their scopes are"
        " cancelled.",
        detail="A second signal cancels at once.",
    )
    system_message_policy: str = declare(
        kind=POLICY,
        default="merge",
        rule=OneOf("merge", "strict"),
        visible=True,
        patchable=True,
        description="`merge`: leading system messages join into the system prompt, a later one stays in place as its"
        " own block.",
        detail="`strict`: a system message that is not first is a 400.",
    )
    developer_message_policy: str = declare(
        kind=POLICY,
        default="inplace",
        rule=OneOf("inplace", "into-system", "after-system", "one-after-system", "reject"),
        visible=True,
        patchable=True,
        description="Where `developer` messages go.",
        detail="A leading one is the system prompt, except under `reject`, which is a 400.",
    )
    cors_origins: str = declare(
        kind=ORIGINS,
        default="*",
        visible=True,
        patchable=True,
        description="Origins that CORS answers allow.",
    )
    allowed_hosts: str | None = declare(
        kind=HOSTS,
        default=None,
        visible=True,
        description="Extra `Host` names the rebinding check accepts.",
        detail="`*` turns it off.",
    )
    max_connections: int = declare(
        kind=COUNT,
        default=1024,
        rule=Range(1, 65536),
        visible=True,
        description="Connections open at once.",
        detail="At the limit no further one is accepted until one closes.",
    )
    max_sockets: int = declare(
        kind=COUNT,
        default=256,
        rule=Range(1, 65536),
        visible=True,
        description="WebSockets open at once.",
        detail="One more is refused before the upgrade.",
    )
    write_timeout: int = declare(
        kind=SECONDS,
        default=60,
        rule=Range(1, 3600),
        visible=True,
        description="A client that takes no bytes of its answer for this long is cut.",
    )
    body_timeout: int = declare(
        kind=SECONDS,
        default=60,
        rule=Range(1, 3600),
        visible=True,
        description="Silence inside a request's body for this long is answered with 408 `body_timeout`.",
    )
