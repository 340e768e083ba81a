"""Metrics of this process: counters, gauges and latencies of every store that it has opened.

::

    import tensorhold.metrics

    print(tensorhold.metrics.text())
    with tensorhold.metrics.start_http(port=9401) as server:
        ...  # Prometheus scrapes http://127.0.0.1:9401/metrics

``docs/metrics.md`` lists them. They are counted whether or not anybody asks, at a cost that does not show;
``TENSORHOLD_METRICS=off`` in the environment switches them off. A scrape asks neither the engine nor the index.

A forked child counts from zero, and has no server until it starts one.
"""

from __future__ import annotations

import atexit
import http.server
import logging
import os
import socket
import socketserver
import threading
import time
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from tensorhold import _tensorhold
from tensorhold.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["CONTENT_TYPE", "Server", "collector", "start_http", "text"]

log: Final = logging.getLogger("tensorhold.metrics")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The type of :func:`text`."""

MOST_CONNECTIONS: Final = 8
"""Further ones are closed at once."""
CONNECTION_WITHIN_S: Final = 10.0
"""How long a connection may last, whatever the other side does."""
CLOSE_WITHIN_S: Final = 1.0


def text() -> str:
    """The metrics of this process now, in the text format of Prometheus."""
    return _tensorhold.metrics_text()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request for each connection."""

    server_version = "tensorhold"
    sys_version = ""

    def setup(self) -> None:
        self._end = threading.Timer(CONNECTION_WITHIN_S, _shut, [self.request])
        self._end.daemon = True
        self._end.start()
        super().setup()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "metrics are at /metrics")
            return
        body = text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("%s " + format, self.client_address[0], *args)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("the other side was faster: %s", error)


class _Http(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Another program on the same port would otherwise go unnoticed.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not as in HTTPServer, which asks the name service for the host's name and may wait for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def let_end(self, within: float) -> None:
        """Waits until no request is being answered."""
        deadline = time.monotonic() + within
        for _ in range(MOST_CONNECTIONS):
            self.places.acquire(timeout=max(0.0, deadline - time.monotonic()))

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self.places.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no thread could be started
            self.places.release()
            self.shutdown_request(request)
            log.warning("a scrape was not answered: %s", error)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a scrape from %s ended early", client_address[0], exc_info=True)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """Serves the metrics over HTTP until it is closed, or the process ends. Also a context manager."""

    def __init__(self, host: str, port: int) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family = found[0][0]
            self._http: _Http | None = _Http((host, port), family)
        except (OSError, OverflowError) as error:
            raise Unavailable(
                "the metrics cannot be served there; give a free port, or 0 for any",
                operation="python.metrics",
                facts={"host": host, "port": str(port)},
            ) from error
        self.host = host
        self.port: int = self._http.server_address[1]
        """The port that it listens on."""
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="tensorhold-metrics", daemon=True
        )
        self._thread.start()
        _servers.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the process that this one was forked from."""
        return self._http is None

    def close(self) -> None:
        """Stops listening. Does nothing the second time."""
        server, self._http = self._http, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        self._thread.join(CLOSE_WITHIN_S)
        server.let_end(CLOSE_WITHIN_S)

    def _leave_to_parent(self) -> None:
        """In a forked child: lets go of the socket, whose thread is the parent's."""
        server, self._http = self._http, None
        if server is not None:
            server.socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tensorhold.metrics.Server on {self.host}:{self.port}{', closed' if self.closed else ''}>"


def start_http(port: int = 0, host: str = "127.0.0.1") -> Server:
    """Serves the metrics at ``/metrics``, in a thread of its own. Port 0 takes a free one: see :attr:`Server.port`.

    The server asks nobody for a password: on any other address than this machine's, every program that reaches the port can read
    the names of stores and how busy they are."""
    if not 0 <= port <= 65535:
        raise Invalid("a port is between 0 and 65535", operation="python.metrics", facts={"port": str(port)})
    return Server(host, port)


class _Collector:
    def collect(self) -> Iterable[Metric]:
        from prometheus_client.parser import text_string_to_metric_families

        return text_string_to_metric_families(text())

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering it does not read the metrics."""
        return []


def collector() -> _Collector:
    """The metrics as a collector, for a program that has a registry of ``prometheus_client``:
    ``REGISTRY.register(tensorhold.metrics.collector())``. Its multiprocess mode takes no collectors; there, each process
    calls :func:`start_http`."""
    return _Collector()


def _at_exit() -> None:
    # A thread that comes back from the compiled module to an interpreter that ends would end the process with it.
    for server in list(_servers):
        server.close()


def _in_child() -> None:
    for server in list(_servers):
        server._leave_to_parent()
    _servers.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
