"""Listening sockets and the guard around Hypercorn's protocol code: what the server runs an app on.

Here: binding addresses, accepting connections, the limits of one connection (time, size, number), and stopping. Not here:
anything of a request's meaning (`routes/`, `app.py`) and the grace policy (`server.py`). `server.py` calls `bind` first,
then `serve` once per app. What is left to Hypercorn and what is not is in docs/adr/0002-guarded-listener.md.
"""

from trio_server.listeners.binding import bind, url_of
from trio_server.listeners.options import ListenerOptions
from trio_server.listeners.refusals import error_body
from trio_server.listeners.server import serve

__all__ = ["ListenerOptions", "bind", "error_body", "serve", "url_of"]
