"""trio_server: an OpenAI-compatible inference server in which every request is a nursery.

The rooms of the package are described in `docs/architecture.md`. Nothing is imported here, so that `trio-server --help`
does not pay for llama.cpp.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trio-server")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+source"
