"""For development: the bearer token is the user id."""

from typing import ClassVar, Self

from tealagents.auth.options import MockOptions
from tealagents.domain.errors import Unauthenticated
from tealagents.domain.models import Caller, Json, User
from tealagents.domain.ports import Clock

__all__ = ["MockAuthenticator"]

_MAX_CHARACTERS = 200


class MockAuthenticator:
    """Takes the bearer token for the user's id, so any client can claim any id: for development only."""

    Options: ClassVar[type[MockOptions]] = MockOptions

    def __init__(self, options: MockOptions, clock: Clock | None = None) -> None:
        self._approvers = frozenset(options.approver_users)
        self._auditors = frozenset(options.auditor_users)

    async def authenticate(self, token: str) -> Caller:
        if not token:
            raise Unauthenticated("The bearer token is empty. With mock authentication it is the user's id.")
        if len(token) > _MAX_CHARACTERS or not token.isprintable() or " " in token:
            raise Unauthenticated(
                "With mock authentication the bearer token is the user's id: "
                f"up to {_MAX_CHARACTERS} printable characters without spaces."
            )
        return Caller(
            User("mock", token),
            approver=token in self._approvers,
            auditor=token in self._auditors,
            token=token,
        )

    def resource_metadata(self, resource: str) -> Json | None:
        """None: there is no authority to name."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None
