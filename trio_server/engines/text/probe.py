"""Trying a GGUF file in a process of its own, since a damaged one can end the process that loads it.

`python -m trio_server.engines.text.probe FILE` loads the model and makes a small context without allocating memory for
weights, and exits 0, or prints one line and exits 1; a crash shows as a signal. `probe()` runs that and turns the outcome
into a sentence. Loading the vocabulary alone would not do: most of the header's values are used only after it.
"""

from __future__ import annotations

import subprocess
import sys

import trio

from trio_server.engines.text.gguf import Header, NotGGUF, read_header

LIMIT_S = 120.0


async def probe(path: str) -> Header:
    """The header of a GGUF file that llama.cpp's loader survives. Raises `NotGGUF` with the reason, or `OSError`.

    When cancelled, the child process is killed.
    """
    header = await trio.to_thread.run_sync(read_header, path, abandon_on_cancel=True)
    with trio.move_on_after(LIMIT_S) as scope:
        outcome = await trio.run_process(
            [sys.executable, "-m", __name__, path],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    if scope.cancelled_caught:
        raise NotGGUF(f"llama.cpp had not read the file's header after {LIMIT_S:g} s")
    if outcome.returncode < 0:
        raise NotGGUF(f"llama.cpp's loader crashes on it (signal {-outcome.returncode})")
    if outcome.returncode:
        lines = outcome.stdout.decode("utf-8", "replace").split("\n")
        raise NotGGUF(lines[0][:300] or "llama.cpp cannot read it")
    return header


def main() -> int:
    from trio_server.engines.text import llama

    reasons: list[str] = []

    def keep_errors(level: str, text: str) -> None:
        if level == "error":
            reasons.append(text)

    llama.route_native_log(keep_errors)
    try:
        model = llama.Model(llama.ModelOptions(sys.argv[1], mmap=False, simulated=True))
        llama.Context(model, llama.ContextOptions(1, 256, 32, threads=1, threads_batch=1)).close()
        model.close()
    except llama.LlamaError as error:
        sys.stdout.write(f"{error}: {reasons[0]}\n" if reasons else f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
