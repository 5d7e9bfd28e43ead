"""A TCP proxy that can go silent: it keeps connections open and acknowledges bytes, but passes nothing on."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

from psycopg.conninfo import conninfo_to_dict

CHUNK = 65536


class Proxy:
    """Forwards connections on a port of its own to a server."""

    def __init__(self, server: tuple[str, int] | str, port: int = 0) -> None:
        self._server = server  # host and port, or the path of a socket
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]  # the port to connect to
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        # Sockets, not file descriptors: a new connection may get the number of one that is being closed.
        self._silent: set[socket.socket] = set()  # clients whose bytes are swallowed
        self.silences_new = False
        self._losing: tuple[bytes, bool] | None = None
        self._cut: set[socket.socket] = set()  # clients that are cut off at the next reply
        self.lost = 0  # replies that were lost on purpose
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def silence(self, *, new: bool) -> None:
        """Pass nothing on over the present connections, and over new ones if `new`."""
        with self._lock:
            self._silent |= {client for client, _ in self._pairs}
            self.silences_new = new

    def lose_reply(self, words: bytes, *, cut: bool) -> None:
        """Lose the reply to the next request with these words: cut the connection, or let it go silent."""
        self._losing = (words, cut)

    def heal(self) -> None:
        """Let new connections through; the silent ones stay silent."""
        self.silences_new = False

    def again(self) -> Proxy:
        """Return a proxy on the same port, after this one was closed."""
        return Proxy(self._server, self.port)

    def close(self) -> None:
        """Close every connection."""
        self._listener.close()
        with self._lock:
            for pair in self._pairs:
                for end in pair:
                    with suppress(OSError):  # it was closed already
                        end.shutdown(
                            socket.SHUT_RDWR
                        )  # close() alone waits for the thread that reads from it
                    end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                if self._listener.fileno() < 0:  # closed while it waited
                    return client.close()
                server = self._connect()
            except OSError:
                return None
            with self._lock:
                self._pairs.append((client, server))
                if self.silences_new:
                    self._silent.add(client)
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._server, tuple):
            return socket.create_connection(self._server)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        return server

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [], 1)
                for end in ready:
                    data = end.recv(CHUNK)
                    if not data:
                        return
                    if client in self._cut:
                        return
                    if client in self._silent:
                        continue
                    (server if end is client else client).sendall(data)
                    if end is client:
                        self._lose(client, data)
        except (OSError, ValueError):  # one of them was closed
            return
        finally:
            client.close()
            server.close()
            self._silent.discard(client)
            self._cut.discard(client)

    def _lose(self, client: socket.socket, data: bytes) -> None:
        """Let the reply to this request be lost, if it is the one that was meant."""
        if self._losing is not None and self._losing[0] in data:
            (self._cut if self._losing[1] else self._silent).add(client)
            self._losing = None
            self.lost += 1


@contextmanager
def through(url: str) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy in front of the server that a URL names, and the URL that leads through it."""
    parts = urlsplit(url)
    if parts.scheme == "postgresql":
        given = conninfo_to_dict(url)
        host, port = str(given["host"]), int(given.get("port") or 5432)
        proxy = Proxy(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port))
        url = f"postgresql://{given.get('user', 'postgres')}@127.0.0.1:{{}}/{given['dbname']}"
    else:
        proxy = Proxy((parts.hostname or "127.0.0.1", parts.port or 6379))
        url = urlunsplit(parts._replace(netloc="127.0.0.1:{}"))
    try:
        yield proxy, url.format(proxy.port)
    finally:
        proxy.close()
