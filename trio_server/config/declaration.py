"""What one field's declaration holds (the configuration page's section 2), and `declare`, which makes one.

A declaration is the only place that knows a field. Flags, environment names, help, the documentation's tables and the
typed settings are computed from it; nothing here reads a value from anywhere. The groups are in `groups`, and `fields`
gathers them into the table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from trio_server.config.kinds import BadValue, FileSystem, Kind, Shown
from trio_server.config.rules import Rule

T = TypeVar("T")
D = TypeVar("D")

Family = Literal["dense", "moe", "diffusion", "whisper"]
FAMILIES: Final[tuple[Family, ...]] = get_args(Family)
TEXT: Final[tuple[Family, ...]] = ("dense", "moe")

Reloads = Literal["model", "speech"]

METADATA_KEY: Final = "declaration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One field. `group` and `name` are filled in by `fields` from where the declaration stands.

    `description` is one sentence, for help and for programs; `detail` is what the documentation says beyond it.
    """

    group: str = ""
    name: str = ""
    kind: Kind[Any]
    default: Any
    rule: Rule | None
    families: tuple[Family, ...]
    visible: bool
    patchable: bool
    reloads: Reloads | None
    scoped: bool
    secret: bool
    description: str
    detail: str

    def __post_init__(self) -> None:
        if self.secret and self.visible:
            raise TypeError("a secret field cannot be visible")
        if self.default is not None and self.rule is not None:
            fault = self.rule.fault(self.default, str(self.default))
            if fault is not None:
                raise TypeError(f"the default breaks the field's own rule: {fault}")

    @property
    def dotted(self) -> str:
        """The name in the settings object, in a file and in errors: `model.max_context`."""
        return f"{self.group}.{self.name}"

    @property
    def flag(self) -> str:
        return f"--{self.group}-{self.name}".replace("_", "-")

    @property
    def env(self) -> str:
        return f"TRIO_SERVER_{self.group}_{self.name}".upper()

    @property
    def scoped_flags(self) -> tuple[str, ...]:
        return tuple(f"--{family}{self.flag[1:]}" for family in self.families) if self.scoped else ()

    @property
    def reload_required(self) -> bool:
        return self.reloads is not None

    @property
    def rule_text(self) -> str:
        return self.rule.text if self.rule is not None else ""

    @property
    def rule_note(self) -> str:
        """The rule for people, with what the kind itself asks for."""
        return " ".join(filter(None, (self.kind.note, self.rule_text)))

    @property
    def default_text(self) -> str:
        return self.kind.show_text(self.default)

    @property
    def default_shown(self) -> Shown:
        return None if self.default is None else self.kind.show(self.default)

    def read(self, text: str, filesystem: FileSystem) -> Any:
        """The value of a trimmed text that is not empty, or `BadValue`."""
        value = self.kind.parse(text)
        fault = self.rule.fault(value, text) if self.rule is not None else None
        if fault is not None:
            raise BadValue(fault)
        self.kind.check_disk(value, filesystem)
        return value

    def document(self) -> dict[str, Any]:
        """The object that section 3.3 shows for this field."""
        return {
            "name": self.dotted,
            "group": self.group,
            "field": self.name,
            "flag": self.flag,
            "env": self.env,
            "file_key": self.dotted,
            "kind": self.kind.name,
            "default": self.default_shown,
            "rule": self.rule_text,
            "constraint": self.rule.constraint if self.rule is not None else None,
            "families": list(self.families),
            "scoped": self.scoped,
            "scoped_flags": list(self.scoped_flags),
            "patchable": self.patchable,
            "reload_required": self.reload_required,
            "reloads": self.reloads,
            "description": self.description,
        }


def declare(
    *,
    kind: Kind[T],
    default: D,
    rule: Rule | None = None,
    families: tuple[Family, ...] = FAMILIES,
    visible: bool = False,
    patchable: bool = False,
    reloads: Reloads | None = None,
    scoped: bool = False,
    secret: bool = False,
    description: str,
    detail: str = "",
) -> T | D:
    """Declare a field of a group's dataclass.

    The type says what a checker needs to know: a field is of its kind's type, or of its default's (`None` when unset).
    What is left out makes a field less exposed, never more.
    """
    declaration = Declaration(
        kind=kind,
        default=default,
        rule=rule,
        families=families,
        visible=visible,
        patchable=patchable,
        reloads=reloads,
        scoped=scoped,
        secret=secret,
        description=description,
        detail=detail,
    )
    # `Group.__repr__` masks a secret; should a group be written without it, dataclass's own repr leaves it out.
    made: Any = dataclasses.field(default=default, repr=not secret, metadata={METADATA_KEY: declaration})
    return made  # type: ignore[no-any-return]  # a dataclass takes the field() and makes it the value's slot


def declaration_of(item: dataclasses.Field[Any]) -> Declaration:
    """The declaration behind a dataclass field, or `TypeError`: a group holds declared fields and nothing else."""
    found = item.metadata.get(METADATA_KEY)
    if not isinstance(found, Declaration):
        raise TypeError(f"{item.name} was not made by declare()")
    return found


class Group:
    """Base of the groups: a repr that names every field and shows the value of no secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = []
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            hidden = declaration_of(item).secret and value is not None
            parts.append(f"{item.name}={'(set, not shown)' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"
