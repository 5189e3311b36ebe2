"""What no single field can know: the rules between fields (the configuration page's section 5), and the warnings.

Both take settings that are otherwise good and name each field as the operator spelled it.
"""

from __future__ import annotations

from collections.abc import Iterator

from trio_server.config.fields import Settings
from trio_server.config.kinds import split_address

_SHORT_KEY = 16


def clash(settings: Settings) -> str | None:
    """Why these settings cannot go together, or `None`."""
    model = settings.model
    if model.kv_format.startswith("q") and model.flash_attention == "off":
        kv_format = settings.spelling("model.kv_format")
        flash_attention = settings.spelling("model.flash_attention")
        return f"`{kv_format}`: `{model.kv_format}` needs flash attention, which `{flash_attention}` turns off"
    return None


def warnings(settings: Settings) -> Iterator[str]:
    """What is served all the same, but should be known. No line holds a secret's value."""
    key = settings.server.api_key
    if key is None and not is_loopback(settings.server.bind):
        yield (
            f"`{settings.spelling('server.bind')}`: anyone who can reach {settings.server.bind} can use, switch and"
            " delete models; `--server-api-key` asks for a key"
        )
    if key is not None and key != "auto" and len(key) < _SHORT_KEY:
        yield f"`{settings.spelling('server.api_key')}`: a key under {_SHORT_KEY} characters is easily guessed"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `address` (`host:port`)."""
    import ipaddress

    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
