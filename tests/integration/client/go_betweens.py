"""Intermediaries between a client and its gateway: an HTTP proxy, a TLS server, a connection that becomes silent."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """Start an HTTP proxy, with and without CONNECT; yield its URL and the first line of every connection."""
    seen: list[str] = []

    def serve(client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        first = head.split(b"\r\n", 1)[0].decode()
        seen.append(first)
        method, target, _ = first.split(" ")
        tunnel = method == "CONNECT"
        host, port = (target.rsplit(":", 1)) if tunnel else (urlsplit(target).hostname, urlsplit(target).port)
        with socket.create_connection((host, int(port or 80))) as server:
            if tunnel:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                server.sendall(head)
            _pump(client, server)

    with _listening(serve) as port:
        yield f"http://127.0.0.1:{port}", seen


@contextmanager
def tls(url: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Start a TLS server with an unknown certificate before the server at `url`; yield its URL and the certificate."""
    certificate, key = _certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.num_tickets = 100  # the client reads them after its handshake, but may already send
    behind, errors = urlsplit(url), list[ssl.SSLError]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):  # the peer closed its connection
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
        except ssl.SSLError as error:
            errors.append(error)
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with ExitStack() as ended, suppress(asyncio.CancelledError):  # cancelled when the proxy ends
            ended.callback(writer.transport.abort)
            behind_reader, behind_writer = await asyncio.open_connection(behind.hostname, behind.port or 80)
            ended.callback(behind_writer.transport.abort)
            await asyncio.gather(forward(reader, behind_writer), forward(behind_reader, writer))

    async def run() -> None:
        listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        started.set_result((listener.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(ended.set)))
        await ended.wait()
        listener.close()

    started: Future[tuple[int, Callable[[], object]]] = Future()
    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)  # only one thread may use an SSL object
    thread.start()
    port, stop = started.result()
    try:
        yield f"https://127.0.0.1:{port}", certificate
    finally:
        stop()
        thread.join()
    assert not errors, errors


@contextmanager
def answering(head: str, body: bytes = b"") -> Iterator[str]:
    """Start a server that always returns this status line, headers and body; yield its URL."""

    def serve(client: socket.socket) -> None:
        client.recv(65536)
        response = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        client.sendall(response.encode() + body)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass

    with _listening(serve) as port:
        yield f"http://127.0.0.1:{port}"


class Silence:
    """Whether connections forward data; they stay open."""

    def __init__(self) -> None:
        self.swallowed = threading.Event()
        """Set once data was dropped from the client."""
        self.lost = threading.Event()
        """Set once data was dropped, from either side."""
        self.connections = 0
        """The number of connections that were opened."""
        self._clients: list[socket.socket] = []
        self._fallen = False
        self._ended = threading.Event()

    def fall(self) -> None:
        """Stop forwarding; connections that are open now never forward again."""
        self._fallen = True

    def lift(self) -> None:
        """Forward on connections that are opened from now on."""
        self._fallen = False
        self._ended, over = threading.Event(), self._ended
        over.set()
        self.swallowed.clear()

    def cut(self) -> None:
        """Close every open connection."""
        for client in self._clients:
            with suppress(OSError):  # it has ended already
                client.shutdown(socket.SHUT_RDWR)

    def serve(self, client: socket.socket, port: int) -> None:
        """Forward a connection's data while that is permitted."""
        self.connections += 1
        self._clients.append(client)
        lost = self._ended
        with socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=self._copy, args=(server, client, lost, False), daemon=True)
            back.start()
            self._copy(client, server, lost, True)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, lost: threading.Event, asks: bool) -> None:
        silent = False
        with suppress(OSError):
            while data := source.recv(65536):
                silent = silent or self._fallen or lost.is_set()
                if not silent:
                    target.sendall(data)
                else:
                    self.lost.set()
                    if asks:
                        self.swallowed.set()
        if not (silent or self._fallen or lost.is_set()):
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)


@contextmanager
def quiet_line(url: str) -> Iterator[tuple[str, Silence]]:
    """Start a proxy for the server at `url` whose connections can become silent; yield its URL."""
    silence = Silence()
    with _listening(lambda client: silence.serve(client, int(urlsplit(url).port or 80))) as port:
        yield f"http://127.0.0.1:{port}", silence


@contextmanager
def _listening(serve) -> Iterator[int]:  # type: ignore[no-untyped-def]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def one(client: socket.socket) -> None:
            with client, suppress(OSError):  # the peer closed its connection
                serve(client)

        def accept() -> None:
            with suppress(OSError):  # the listener was closed
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _pump(one: socket.socket, other: socket.socket) -> None:
    back = threading.Thread(target=_copy, args=(other, one), daemon=True)
    back.start()
    _copy(one, other)
    back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a gateway of our own")])
    now = dt.datetime.now(dt.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "ca.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, secret
