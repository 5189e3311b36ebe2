"""The arrows between the rooms (docs/architecture.md), and what no room may use. Reads the source; imports nothing of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "trio_server"

# What a room may import of the others. A module that lies beside the rooms is one by itself.
ARROWS = {
    "config": set(),
    "observe": set(),
    "wire": set(),
    "admission": set(),
    "engines": set(),
    "listeners": {"wire"},
    "models": {"admission", "config", "engines", "observe"},
    "routes": {"admission", "config", "engines", "models", "observe", "wire"},
    "app": {"observe", "routes", "wire"},
    "server": {"admission", "app", "config", "engines", "listeners", "models", "observe", "wire"},
    "cli": {"config", "server"},
    "__main__": {"cli"},
}
# The server is handed to who needs it; its type may be named.
TYPES_ONLY = {"routes": {"server"}, "app": {"server"}}

# Where a library may be imported: rooms, or single modules.
LIBRARIES = {
    "quart": {"routes", "app"},
    "quart_trio": {"routes", "app"},
    "werkzeug": {"routes", "app"},
    "hypercorn": {"listeners", "app"},
    "h11": {"listeners"},
    "wsproto": {"listeners"},
    "llama_cpp": {"engines", "models.plan"},
    "ctypes": {"engines.text.llama"},
    "jinja2": {"engines.text.templates"},
    "asyncio": set(),
}

PURE = [
    "admission.retry_after",
    *(
        f"engines.text.{name}"
        for name in ("generation", "pacing", "pipeline", "policies", "prefix_cache", "stops", "templates")
    ),
    "models.caps",
    "models.sampling_rows",
    "models.turn",
    "wire",
    "config",
]


@dataclass(frozen=True)
class Import:
    """One name brought in by `module` (without the package's name): `target` in full, `types_only` under TYPE_CHECKING."""

    module: str
    target: str
    line: int
    types_only: bool = False

    @property
    def room(self) -> str:
        return self.module.split(".")[0]

    @property
    def target_room(self) -> str | None:
        """The room of this package that `target` lies in."""
        head, *rest = self.target.split(".")
        return rest[0] if head == PACKAGE and rest and rest[0] != "__version__" else None

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def imports_of(module: str, source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            yield Import(module, target, node.lineno, id(node) in guarded)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts").rglob("*.py"))}
IMPORTS = [entry for module, source in SOURCES.items() if module for entry in imports_of(module, source)]


def within(module: str, places: set[str] | list[str]) -> bool:
    return any(module == place or module.startswith(place + ".") for place in places)


def wrong_arrows(imports: list[Import]) -> list[str]:
    wrong = []
    for entry in imports:
        target = entry.target_room
        if target is None or target == entry.room:
            continue
        allowed = ARROWS[entry.room] | (TYPES_ONLY.get(entry.room, set()) if entry.types_only else set())
        if target not in allowed:
            wrong.append(str(entry))
    return wrong


def wrong_libraries(imports: list[Import]) -> list[str]:
    return [
        str(entry)
        for entry in imports
        if (library := entry.target.split(".")[0]) in LIBRARIES and not within(entry.module, LIBRARIES[library])
    ]


def test_every_room_has_its_arrows_written_down() -> None:
    assert {module.split(".")[0] for module in SOURCES if module} == set(ARROWS)
    assert len(IMPORTS) > 300


def test_no_arrow_points_back() -> None:
    assert wrong_arrows(IMPORTS) == []


def test_libraries_stay_in_their_rooms() -> None:
    assert wrong_libraries(IMPORTS) == []


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("engines.text.loop", "from trio_server.routes.body import read_object", True),
        ("engines.thread", "import trio_server.admission", True),
        ("engines.thread", "def f():\n    from trio_server import models", True),
        ("wire.chat", "from trio_server.engines.text.stops import Matched", True),
        ("wire.chat", "if TYPE_CHECKING:\n    from trio_server.routes import chat", True),
        ("config.fields", "from trio_server.observe import log", True),
        ("observe.log", "from trio_server.config import Settings", True),
        ("models.load", "from trio_server.wire import errors", True),
        ("models.load", "from trio_server.routes import chat", True),
        ("admission.lanes", "from trio_server.wire import errors", True),
        ("routes.chat", "from trio_server.server import Server", True),
        ("routes.chat", "if TYPE_CHECKING:\n    from trio_server.server import Server", False),
        ("routes.chat", "from trio_server.models.load import Load", False),
        ("engines.thread", "from trio_server.engines.text import loop", False),
        ("observe.log", "from trio_server import __version__", False),
    ],
)
def test_an_arrow_is_told_from_one_that_points_back(module: str, source: str, wrong: bool) -> None:
    assert bool(wrong_arrows(list(imports_of(module, source)))) == wrong


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("engines.text.loop", "import quart", True),
        ("wire.chat", "from quart import Request", True),
        ("server", "from asyncio import run", True),
        ("engines.text.loop", "import ctypes", True),
        ("engines.text.llama", "import ctypes, llama_cpp", False),
        ("routes.chat", "from quart import Response", False),
    ],
)
def test_a_library_is_seen_where_it_does_not_belong(module: str, source: str, wrong: bool) -> None:
    assert bool(wrong_libraries(list(imports_of(module, source)))) == wrong


def test_pure_modules_know_no_trio() -> None:
    for place in PURE:
        assert any(within(module, [place]) for module in SOURCES), place
    wrong = [
        str(entry)
        for entry in IMPORTS
        if within(entry.module, PURE) and entry.target.split(".")[0] in ("trio", "quart", "hypercorn")
    ]
    assert wrong == []


def test_modules_import_each_other_in_one_direction() -> None:
    """No circle of imports, whatever is under TYPE_CHECKING left aside."""
    edges: dict[str, set[str]] = {module: set() for module in SOURCES}
    for entry in IMPORTS:
        if entry.types_only or entry.target_room is None:
            continue
        target = entry.target.removeprefix(PACKAGE + ".")
        while target not in SOURCES:
            target = target.rpartition(".")[0]
        if target != entry.module:
            edges[entry.module].add(target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for target in edges[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize("name", sorted({**SOURCES, **SCRIPTS}))
def test_nothing_speaks_of_asyncio(name: str) -> None:
    for node in ast.walk(ast.parse({**SOURCES, **SCRIPTS}[name])):
        names = [node.id] if isinstance(node, ast.Name) else [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value.startswith("asyncio") else []
        assert not [name for name in names if name.split(".")[0] == "asyncio"]


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_the_package_prints_nothing(module: str) -> None:
    """Results of commands go out by `sys.stdout.write` in cli.py, everything else by the log."""
    tree = ast.parse(SOURCES[module])
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"]


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_a_module_begins_by_saying_what_lives_there(module: str) -> None:
    assert ast.get_docstring(ast.parse(SOURCES[module]))
