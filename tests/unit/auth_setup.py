"""What the tests of authentication share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from tealagents.auth import open_auth
from tealagents.domain.models import User
from tealagents.domain.ports import Authenticator
from tealagents.testing.authority import TENANT, AuthorityKey, LocalAuthority, object_id
from tealagents.testing.clock import FakeClock

#: what authorities sign with at first: making a key takes longer than most tests
KEY = AuthorityKey.generate()
ALICE = User(TENANT, object_id("alice"))


class MachineClock(FakeClock):
    """Begins now, for what compares its times with the machine's."""

    def __init__(self) -> None:
        super().__init__(datetime.now(UTC).replace(microsecond=0))


@asynccontextmanager
async def entra(authority: LocalAuthority, clock: FakeClock, **options: Any) -> AsyncIterator[Authenticator]:
    """An authenticator that trusts `authority`."""
    async with open_auth("entra", authority.options(**options), clock) as opened:
        yield opened
