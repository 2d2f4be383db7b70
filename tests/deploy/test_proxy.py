"""The proxy of a deployment, as nginx runs it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from tests.ports import kept_ports

from fedsynth.deploy.certificates import Authority
from fedsynth.deploy.flower.files import nginx_file
from fedsynth.deploy.flower.local import listens, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")


class Failing(BaseHTTPRequestHandler):
    """A SuperLink whose database cannot be written to; ``peers`` are the ends of the connections that it answered."""

    protocol_version = "HTTP/1.1"  # as the SuperLink's, it keeps connections
    peers: ClassVar[set[object]] = set()

    def do_POST(self) -> None:
        """Answer as Flower's does then."""
        self.peers.add(self.client_address)
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[int]:
    """Run the server's nginx before a SuperLink that fails; give nginx's port."""
    authority = Authority.create()
    (tmp_path / "ca.crt").write_text(authority.text)
    issued = {
        "server": authority.issue_with_key("server", "server", "localhost"),
        "north": authority.issue_with_key("north", "site", "localhost"),
    }
    for name, (certificate, key) in issued.items():
        (tmp_path / f"{name}.pem").write_text(certificate)
        (tmp_path / f"{name}.key").write_bytes(key)
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    port, other = kept_ports(2)
    text = nginx_file("nginx.conf", host="localhost", port=port)
    text = text.replace("9443", str(upstream.server_port)).replace("listen 9444", f"listen {other}")
    (tmp_path / "nginx.conf").write_text(text)
    nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-g", "daemon off;"])
    try:
        wait_for("nginx's start", lambda: listens(port), 60)
        yield port
    finally:
        nginx.terminate()
        nginx.wait(60)
        upstream.shutdown()
        upstream.server_close()


def status(port: int, folder: Path, path: str) -> int:
    """Return the status that a site's node gets."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "north.pem", folder / "north.key")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"https://localhost:{port}{path}", data=b"", context=context, timeout=60)
    refused.value.close()
    return refused.value.code


def test_a_site_reaches_what_is_for_sites_and_nothing_else(tmp_path, proxy):
    assert status(proxy, tmp_path, "/v1/fleet/pull-messages") == 500
    assert status(proxy, tmp_path, "/v1/control/start-run") == 403
    assert status(proxy, tmp_path, "/v1/runtime/acquire-task") == 403


def test_sites_share_few_connections_to_the_superlink_and_leave_no_line_in_the_folder(tmp_path, proxy):
    """Each request was a connection of its own, and a line: 70 MB a day, in a folder that is backed up."""
    Failing.peers.clear()
    before = {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert [status(proxy, tmp_path, "/v1/fleet/pull-messages") for _ in range(20)] == [500] * 20
    assert {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(Failing.peers) <= 4
