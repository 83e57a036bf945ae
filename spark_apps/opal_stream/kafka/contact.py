"""The cause of an unreachable Kafka, where waiting does not help: a login, TLS, or an address.

librdkafka tries everything again and names a cause on the way, to a callback. Where it names none,
a listener that closes connections is asked whether it speaks TLS, and whether it wants a login.
"""

import re
import socket
import ssl
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from confluent_kafka import KafkaError as Failure

from opal_stream.errors import KafkaSettingsError

_PROBE_S = 3.0  # for each step of asking a listener
_AGAIN_S = 5.0  # between two probes
_DEFAULT_PORT = 9092
_SASL_HANDSHAKE, _SASL_HANDSHAKE_VERSION = 17, 1
_REQUEST = 1  # its number, which the answer repeats
_UNSUPPORTED_MECHANISM = 33  # so a listener that wants a login answers, and only such a one
_AROUND = re.compile(r"^\S+/(?:bootstrap|\d+): | \(after \d+ms in state \w+\)$")
_UNKNOWN_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_WHERE = "by --kafka NAME=VALUE, or in the file of --kafka-settings"
_REMEDIES = {
    "_AUTHENTICATION": f"correct sasl.username, sasl.password and sasl.mechanism, {_WHERE}",
    "_SSL": f"correct ssl.ca.location and the other settings of ssl, {_WHERE}",
}
_PROTOCOL = f"correct security.protocol, {_WHERE}"
_NO_LOGIN = "Request not valid in current SASL state"  # of a listener without logins


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """The security that an address demands of clients."""

    has_tls: bool
    has_login: bool

    @property
    def protocol(self) -> str:
        """The value of security.protocol."""
        transport = "SSL" if self.has_tls else "PLAINTEXT"
        if self.has_login:
            return f"SASL_{transport}"
        return transport


@dataclass(slots=True)
class Contact:
    """The errors that a connection's clients have reported.

    Before the first answer a cause is final: the same settings would fail again.
    """

    last: str = ""
    _is_made: bool = False
    _are_all_down: bool = False
    _remedy: str = ""
    _has_unknown_host: bool = False
    _probed_s: float = field(default=float("-inf"))

    def note(self, error: Failure) -> None:
        """Note an error that librdkafka reports, whatever it then does about it."""
        name = error.name()
        if name == "_ALL_BROKERS_DOWN":
            self._are_all_down = True
            return
        self.last = _AROUND.sub("", _AROUND.sub("", error.str()))
        self._has_unknown_host |= name == "_RESOLVE"
        if name in _REMEDIES:
            self._remedy = _REMEDIES[name]
        if _NO_LOGIN in self.last:
            self._remedy = f"the listener accepts no login: {_PROTOCOL}"

    def made(self) -> None:
        """Note that Kafka has answered: what fails from now on may pass."""
        self._is_made = True
        self.last = ""

    def check(self, servers: str, settings: Mapping[str, str]) -> None:
        """Raise KafkaSettingsError where the same settings would fail again."""
        if self._is_made or not self._are_all_down:
            return
        cause, remedy = self.last, self._remedy
        if not remedy and self._has_unknown_host:
            cause, remedy = _unknown_hosts(servers), "correct --bootstrap-servers"
        elif not remedy and time.monotonic() - self._probed_s > _AGAIN_S:
            self._probed_s = time.monotonic()
            cause = _wrong_protocol(servers, settings)
            remedy = _PROTOCOL
        if cause and remedy:
            raise KafkaSettingsError(f"Kafka at {servers} cannot be reached: {cause}; {remedy}")


def _addresses(servers: str) -> list[tuple[str, int]]:
    """Return hosts and ports as librdkafka reads them: protocol and port are optional."""
    addresses = []
    for server in servers.split(","):
        _, _, address = server.strip().rpartition("://")
        if not address:
            continue
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal():
            addresses.append((host.strip("[]"), int(port)))
        else:
            addresses.append((address.strip("[]"), _DEFAULT_PORT))
    return addresses


def _unknown_hosts(servers: str) -> str:
    """Return why none of the hosts can be found; empty where one can, or may later."""
    hosts = [host for host, _ in _addresses(servers)]
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as error:
            if isinstance(error, UnicodeError) or error.errno in _UNKNOWN_HOST:
                continue
        return ""
    if len(hosts) == 1:
        return f"the host {hosts[0]!r} is unknown"
    return "all of its hosts are unknown"


def _wrong_protocol(servers: str, settings: Mapping[str, str]) -> str:
    """Return how the listener and security.protocol differ; empty if they do not."""
    given = settings.get("security.protocol", "plaintext").upper()
    for address in _addresses(servers):
        with suppress(OSError):
            listener = _ask(address)
            if listener is None:
                continue
            if listener.protocol != given:
                return f"security.protocol is {given}, and the listener has {listener.protocol}"
            return ""
    return ""


def _ask(address: tuple[str, int]) -> _Listener | None:
    """Return what a listener wants; None where it does not answer as Kafka does.

    TLS is tried first, then a login with a mechanism of no name.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # only asked whether there is TLS: nothing is sent
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection(address, _PROBE_S)
    with plain:
        try:
            with context.wrap_socket(plain, server_hostname=address[0]) as encrypted:
                return _listener(has_tls=True, has_login=_wants_login(encrypted))
        except (ssl.SSLError, ConnectionError, TimeoutError):
            pass
    with socket.create_connection(address, _PROBE_S) as plain:
        return _listener(has_tls=False, has_login=_wants_login(plain))


def _listener(*, has_tls: bool, has_login: bool | None) -> _Listener | None:
    if has_login is None:
        return None
    return _Listener(has_tls=has_tls, has_login=has_login)


def _wants_login(connection: socket.socket) -> bool | None:
    """Return whether a listener asks for a login; None where it gives no whole answer.

    A load balancer without a broker accepts and closes. A listener that asks for the client's
    certificate ends the connection after the handshake.
    """
    body = struct.pack(">hhih", _SASL_HANDSHAKE, _SASL_HANDSHAKE_VERSION, _REQUEST, -1) + b"\0\1?"
    try:
        connection.sendall(struct.pack(">i", len(body)) + body)
        head = _exactly(connection, 10)  # size, number of the request, error code
    except OSError:
        return None
    if len(head) < 10:
        return None
    _, request, code = struct.unpack(">iih", head)
    if request != _REQUEST:
        return None
    return bool(code == _UNSUPPORTED_MECHANISM)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return `count` bytes, or fewer where the connection ends."""
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data
