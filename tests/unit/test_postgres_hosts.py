"""The hosts of a PostgreSQL URL, each of which is tried for a share of the time."""

from typing import Any

import asyncpg
import pytest
from asyncpg.exceptions import (
    CannotConnectNowError,
    ConnectionDoesNotExistError,
    CrashShutdownError,
    InvalidPasswordError,
    ProtocolViolationError,
    TargetServerAttributeNotMatched,
)

from tealagents.stores.postgres_link import Hosts


class Servers:
    """Stands in for the driver: connects to what a DSN names, or fails by a host's name."""

    def __init__(self) -> None:
        self.faults: dict[str, Exception] = {}
        self.asked: list[str] = []
        #: for how many seconds each was asked
        self.seconds: list[float] = []

    async def connect(self, *, dsn: str, timeout: float) -> str:
        self.asked.append(dsn)
        self.seconds.append(timeout)
        for host, fault in self.faults.items():
            if host in dsn:
                raise fault
        return dsn


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    made = Servers()
    monkeypatch.setattr(asyncpg, "connect", made.connect)
    monkeypatch.delenv("PGPORT", raising=False)
    return made


def hosts_of(dsn: str) -> Hosts:
    arguments: dict[str, Any] = {"dsn": dsn, "timeout": 600}
    return Hosts(arguments)


@pytest.mark.parametrize(
    "fault",
    [
        TimeoutError(),
        ConnectionRefusedError(),
        CannotConnectNowError(),
        CrashShutdownError(),
        TargetServerAttributeNotMatched(),
        ConnectionDoesNotExistError(),  # of a proxy that has no server and closes the connection
        ProtocolViolationError("server login has been failing"),  # of a pgbouncer that has none
    ],
)
async def test_a_host_that_cannot_be_used_is_passed_over_and_comes_last_from_then_on(
    servers: Servers, fault: Exception
) -> None:
    """The one that was connected to is asked first; each has its share of the time that is left."""
    hosts = hosts_of("postgresql://ann:p%40ss@[::1]:1,two,three:3/db?sslmode=require")
    one, two = (f"postgresql://ann:p%40ss@{each}/db?sslmode=require" for each in ("[::1]:1", "two"))
    servers.faults = {"::1": fault}
    for _ in range(2):
        await hosts.connect()
    assert servers.asked == [one, two, two]
    assert servers.seconds == pytest.approx([200, 300, 200], abs=30)


async def test_what_a_host_says_for_all_of_them_is_not_asked_of_another(servers: Servers) -> None:
    """As a wrong password."""
    servers.faults = {"one": InvalidPasswordError("no")}
    with pytest.raises(InvalidPasswordError):
        await hosts_of("postgresql://one,two/db").connect()
    assert len(servers.asked) == 1


async def test_of_hosts_that_all_fail_the_last_one_that_did_not_answer_is_reported(servers: Servers) -> None:
    """Rather than that another takes no writes."""
    last = ConnectionRefusedError()
    servers.faults = {"one": TimeoutError(), "two": last, "three": TargetServerAttributeNotMatched()}
    with pytest.raises(ConnectionRefusedError) as failed:
        await hosts_of("postgresql://one,two,three/db").connect()
    assert failed.value is last


async def test_what_a_server_says_is_reported_rather_than_that_another_does_not_answer(
    servers: Servers,
) -> None:
    """As a pgbouncer does in front of one that cannot be reached, or of a user that it does not know."""
    said = ProtocolViolationError("no such user")
    servers.faults = {
        "one": said,
        "two": ConnectionRefusedError(),
        "three": TargetServerAttributeNotMatched(),
    }
    with pytest.raises(ProtocolViolationError) as failed:
        await hosts_of("postgresql://one,two,three/db").connect()
    assert failed.value is said


async def test_sockets_are_tried_one_by_one_too(servers: Servers) -> None:
    """They are in the query, because a host has no slashes."""
    servers.faults = {"%2Fa": TimeoutError()}
    await hosts_of("postgresql://ann@/db?host=%2Fa%2C%2Fb").connect()
    assert servers.asked == [f"postgresql://ann@/db?host=%2F{each}" for each in "ab"]


@pytest.mark.parametrize(
    ("query", "ports"), [("?target_session_attrs=prefer-standby", ""), ("?sslmode=require", "5433,5434")]
)
async def test_what_the_driver_finds_only_in_all_hosts_is_left_to_it(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, query: str, ports: str
) -> None:
    """A standby if there is one; and which of several ports in the environment is whose."""
    monkeypatch.setenv("PGPORT", ports)
    await hosts_of(dsn := f"postgresql://one,two/db{query}").connect()
    assert servers.asked == [dsn]
