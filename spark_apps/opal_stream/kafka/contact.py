"""The cause of an unreachable Kafka if waiting does not help: a login, TLS, or an address.

librdkafka retries after every error, and reports each error to a callback. If no error names a
cause, a probe asks the listener whether it speaks TLS, and whether it wants a login.
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

_PROBE_S = 3.0  # the timeout of each step of a probe
_PROBE_PAUSE_S = 5.0  # between two probes
_DEFAULT_PORT = 9092
_SASL_HANDSHAKE, _SASL_HANDSHAKE_VERSION = 17, 1
_REQUEST = 1  # the number of the request, which the answer repeats
_UNSUPPORTED_MECHANISM = 33  # the error with which only a listener that wants a login answers
_AROUND = re.compile(r"^\S+/(?:bootstrap|\d+): | \(after \d+ms in state \w+\)$")
_UNKNOWN_HOST = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_WHERE = "in the settings of Kafka (--kafka NAME=VALUE, or the file of --kafka-settings)"
_REMEDIES = {
    "_AUTHENTICATION": f"correct sasl.username, sasl.password and sasl.mechanism, {_WHERE}",
    "_SSL": f"correct ssl.ca.location and the other settings of ssl, {_WHERE}",
}
_PROTOCOL = f"correct security.protocol, {_WHERE}"
_NO_LOGIN = "Request not valid in current SASL state"  # of a listener without logins


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """The security that a listener demands of clients."""

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

    Until Kafka has answered once, some errors are final: the same settings would fail again.
    """

    last: str = ""
    _is_made: bool = False
    _are_all_down: bool = False
    _remedy: str = ""
    _has_unknown_host: bool = False
    _probed_s: float = field(default=float("-inf"))

    def note_error(self, error: Failure) -> None:
        """Note an error that librdkafka reports."""
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

    def note_answer(self) -> None:
        """Note that Kafka has answered: later errors may pass, as the settings are right."""
        self._is_made = True
        self.last = ""

    def raise_if_final(self, servers: str, settings: Mapping[str, str]) -> None:
        """Raise KafkaSettingsError if the same settings would fail again."""
        if self._is_made or not self._are_all_down:
            return
        cause, remedy = self.last, self._remedy
        if not remedy and self._has_unknown_host:
            cause, remedy = _unknown_hosts(servers), "correct bootstrap_servers"
        elif not remedy and time.monotonic() - self._probed_s > _PROBE_PAUSE_S:
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
    """Return why none of the hosts is known; empty if one is, or may be known later."""
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
    """Return how security.protocol differs from that of the listener.

    Return an empty text if it does not.
    """
    given = settings.get("security.protocol", "plaintext").upper()
    for address in _addresses(servers):
        with suppress(OSError):
            listener = _ask(address)
            if listener is None:
                continue
            if listener.protocol != given:
                return f"security.protocol is {given}, but the listener has {listener.protocol}"
            return ""
    return ""


def _ask(address: tuple[str, int]) -> _Listener | None:
    """Probe a listener.

    Return the security that it wants, or None if it is not one of Kafka.

    The probe first tries TLS, then a login with a mechanism that does not exist.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the probe sends nothing secret
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
    """Return whether a listener wants a login; None if it does not answer completely.

    A load balancer without a broker accepts a connection and closes it. A listener that demands a
    client's certificate closes the connection after the handshake.
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
