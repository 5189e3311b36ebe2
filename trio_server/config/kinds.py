"""The kinds of the configuration page's section 1.5: how a field's text is read and how its value is shown.

A kind knows text and values only. It knows no field, no layer and no spelling: a bad value is a `BadValue` holding the
reason, and `layers` puts the spelling in front. Every kind gets text that is trimmed and not empty, and for each value
`parse(show_text(value)) == value`. Bounds and lists of words are no kind's business; they are `rules`.
"""

from __future__ import annotations

import os.path
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")

Shown = bool | int | float | str | None
"""What a value looks like in JSON."""

_LONGEST_QUOTE: Final = 200


class BadValue(Exception):
    """A text that a field cannot take. The message is the reason alone, on one line, without the spelling."""


def escaped(text: str) -> str:
    """`text` as it may stand in a message of one line: what cannot be printed is escaped, what is very long is cut."""
    shown = text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in shown)


def quoted(text: str) -> str:
    return f"`{escaped(text)}`"


class FileSystem(Protocol):
    """The few questions that resolution asks of a disk. `cli` has the real one, tests have a set of names."""

    def exists(self, path: str) -> bool: ...

    def is_folder(self, path: str) -> bool: ...


@dataclass(frozen=True)
class Kind(ABC, Generic[T]):
    """`name` is the page's word for the kind; `note` is what it asks for, said before the field's rule."""

    name: str
    note: str = field(default="", kw_only=True)

    @abstractmethod
    def parse(self, text: str) -> T:
        """The value `text` stands for, or `BadValue`."""

    def check_disk(self, value: T, filesystem: FileSystem) -> None:
        """Raise `BadValue` when the value names something on disk that is not as it must be."""

    def show(self, value: T) -> Shown:
        """The value in a JSON document."""
        assert isinstance(value, bool | int | float | str)
        return value

    def show_text(self, value: T | None) -> str:
        """The value in help and tables; `unset` for none."""
        if value is None:
            return "unset"
        shown = self.show(value)
        return str(shown).lower() if isinstance(shown, bool) else str(shown)


_TRUTH: Final[Mapping[str, bool]] = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


class Bool(Kind[bool]):
    def parse(self, text: str) -> bool:
        try:
            return _TRUTH[text.lower()]
        except KeyError:
            raise BadValue(f"{quoted(text)} is not true or false (on/off and 1/0 are read too)") from None


_WHOLE: Final = re.compile(r"-?[0-9]{1,40}")


@dataclass(frozen=True)
class Whole(Kind[int]):
    """A whole number in decimal digits; `noun` says of what. int() would also take `1_000` and digits of any script."""

    noun: str

    def parse(self, text: str) -> int:
        if _WHOLE.fullmatch(text) is None:
            raise BadValue(f"{quoted(text)} is not {self.noun}")
        return int(text)


@dataclass(frozen=True)
class Layers(Kind[int | str]):
    """A whole number or one of the words, in any case."""

    words: tuple[str, ...]

    def parse(self, text: str) -> int | str:
        if text.lower() in self.words:
            return text.lower()
        if _WHOLE.fullmatch(text) is None:
            raise BadValue(f"{quoted(text)} is not {', '.join(self.words)} or a whole number")
        return int(text)


@dataclass(frozen=True)
class Word(Kind[str]):
    """One of the words of the field's rule, in any case. `aliases` are read and never shown."""

    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    def parse(self, text: str) -> str:
        return self.aliases.get(text.lower(), text.lower())


def _anything(_: str) -> bool:
    return True


@dataclass(frozen=True)
class Text(Kind[str]):
    """Text as typed. `accepts` may narrow it, and then `noun` says to what."""

    accepts: Callable[[str], bool] = _anything
    noun: str = "text"

    def parse(self, text: str) -> str:
        if not self.accepts(text):
            raise BadValue(f"{quoted(text)} is not {self.noun}")
        return text


@dataclass(frozen=True)
class Path(Kind[str]):
    """A path as typed, relative to the working folder.

    `must_be` says what start asks of the disk: `there` (a file or a folder), `a file`, or `writable` (a file that is
    there or whose folder is; whether it may be written is found out by opening it).
    """

    must_be: Literal["there", "a file", "writable"] | None = None

    def parse(self, text: str) -> str:
        return text

    def check_disk(self, value: str, filesystem: FileSystem) -> None:
        if self.must_be in ("there", "a file") and not filesystem.exists(value):
            raise BadValue(f"{escaped(value)} does not exist")
        if self.must_be in ("a file", "writable") and filesystem.is_folder(value):
            raise BadValue(f"{escaped(value)} is a folder, not a file")
        if self.must_be == "writable":
            folder = os.path.dirname(value) or "."
            if not filesystem.is_folder(folder):
                raise BadValue(f"{escaped(value)} cannot be written: there is no folder {escaped(folder)}")


_HOST: Final = re.compile(r"[^\s:/\[\]@?#,*]+")
_ADDRESS: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^\[\]:]*):(?P<port>[0-9]{1,9})")


def _is_ipv6(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_host(text: str) -> bool:
    if text.startswith("[") and text.endswith("]"):
        return _is_ipv6(text[1:-1])
    return _HOST.fullmatch(text) is not None


def split_address(address: str) -> tuple[str, int]:
    """Host (an IPv6 one without its brackets) and port of an address, or `BadValue`."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not _is_host(match["host"]):
        raise BadValue(f"{quoted(address)} is not host:port")
    port = int(match["port"])
    if port > 65535:
        raise BadValue(f"{quoted(address)} is not host:port with a port in 0..65535")
    return match["host"].strip("[]"), port


class Address(Kind[str]):
    def parse(self, text: str) -> str:
        host, port = split_address(text)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_KEY: Final = re.compile(r"[!-~]{1,512}")


class Key(Kind[str]):
    """`auto` in any case, or a key. No message holds the text, and the value is never shown."""

    def parse(self, text: str) -> str:
        if text.lower() == "auto":
            return "auto"
        if _KEY.fullmatch(text) is None:
            raise BadValue("a key is 1 to 512 visible ASCII characters without blanks (the value is not shown)")
        return text

    def show(self, value: str) -> Shown:
        return "(set, not shown)"


_ORIGIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/?#@,*]+")


def _are_origins(text: str) -> bool:
    return text in ("*", "none") or all(_ORIGIN.fullmatch(item) is not None for item in comma_list(text))


def _are_hosts(text: str) -> bool:
    return text == "*" or all(_is_host(item) or _is_ipv6(item) for item in comma_list(text))


def _has_no_blank(text: str) -> bool:
    return not any(c.isspace() for c in text)


def comma_list(text: str) -> tuple[str, ...]:
    """The trimmed items of a comma list."""
    return tuple(item.strip() for item in text.split(","))


BOOL: Final = Bool("bool")
PATH_THERE: Final = Path("path", "there", note="an existing file or folder")
PATH_FILE: Final = Path("path", "a file", note="an existing file")
PATH_WRITABLE: Final = Path("path", "writable", note="a writable file's path")
NAME: Final = Text("text", _has_no_blank, "one word without blanks", note="no blanks")
ORIGINS: Final = Text(
    "text",
    _are_origins,
    "`*`, `none` or a comma list of origins such as https://app.example",
    note="`*`, `none` or a comma list of origins",
)
HOSTS: Final = Text("text", _are_hosts, "`*` or a comma list of host names", note="`*` or a comma list of host names")
ADDRESS: Final = Address("address", note="host:port, port 0-65535")
TOKENS: Final = Whole("tokens", "a token count")
SECONDS: Final = Whole("seconds", "a whole number of seconds")
LANES: Final = Whole("lanes", "a lane count")
COUNT: Final = Whole("count", "a whole number")
PERCENT: Final = Whole("percent", "a whole percentage")
LAYERS: Final = Layers("layers", ("auto", "all"), note="`auto`, `all` or")
CHOICE: Final = Word("choice")
LEVEL: Final = Word("choice", {"warning": "warn"})
POLICY: Final = Word("policy")
KV_FORMAT: Final = Word("kv format")
KEY: Final = Key("key|auto", note="no blanks")
