"""A local web page that shows a run's progress, served on the loopback interface under a secret path.

Only the page and the state of the run (JSON) are served, and only under that path; the page loads nothing else.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

HOST = "127.0.0.1"


class WatchPage(ThreadingHTTPServer):
    """A web server that shows a run's progress on a live page of this machine, under a secret path.

    It answers only requests to 127.0.0.1 with that path. Call ``serve_forever()``.
    """

    daemon_threads = True

    def __init__(self, facts: Callable[[], dict[str, Any]], port: int = 0) -> None:
        """Listen on ``port`` of the loopback interface (0: any free port); raises ``OSError`` if it is taken.

        ``facts()`` is called for each update and returns the view with its ``lines``, or an empty ``run``.
        """
        super().__init__((HOST, port), _Request)
        self.facts = facts
        self.token = secrets.token_urlsafe(24)
        self.nonce = secrets.token_urlsafe(16)
        template = (files("fedsynth.deploy") / "watch.html").read_text(encoding="utf-8")
        self.page = template.replace("@NONCE@", self.nonce).encode()

    @property
    def url(self) -> str:
        """The address to open in a browser, which contains the secret path."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Request(BaseHTTPRequestHandler):
    server: WatchPage
    server_version, sys_version = "fedsynth", ""

    def do_GET(self) -> None:
        """Answer requests with the secret path and the numeric host, which prevents DNS rebinding."""
        page, root = self.server, f"/{self.server.token}/"
        host = self.headers.get("Host", "")
        if not secrets.compare_digest(self.path[: len(root)].encode(), root.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif host != f"{HOST}:{page.server_port}":
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.path == root:
            self._send("text/html; charset=utf-8", page.page)
        elif self.path == f"{root}state.json":
            self._send("application/json", json.dumps(page.facts()).encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, kind: str, content: bytes) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """Add headers that isolate the page."""
        nonce = self.server.nonce
        policy = f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:"
        closed = "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        self.send_header("Content-Security-Policy", f"{policy}; {closed}")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def log_message(self, format: str, *_: Any) -> None:
        """Log nothing: the path is a secret."""
