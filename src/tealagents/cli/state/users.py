"""`tealagents state delete-user` and `owner`: what belongs to one user, and whose an id is."""

import sys
from functools import partial
from typing import Annotated

import typer

from tealagents.cli.help import Config
from tealagents.cli.loading import fail, warn
from tealagents.cli.state.opening import OpenedState, load_checked, run_on
from tealagents.cli.state.reporting import DryRun, count_text, progress, warn_if_none
from tealagents.domain import ids
from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import User
from tealagents.state.inventory import Inventory
from tealagents.state.pruning import UserErasure

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Named = Annotated[
    str | None,
    typer.Argument(
        metavar="TID.OID",
        help="Tenant and object id, as `state owner` prints them. Without a tenant: `.OID`.",
        show_default=False,
    ),
]
Tid = Annotated[
    str | None, typer.Option(metavar="TID", help="Instead of TID.OID: the tenant as it is; may be empty.")
]
Oid = Annotated[str | None, typer.Option(metavar="OID", help="Instead of TID.OID: the object id as it is.")]


def delete_user_command(
    user: Named = None,
    tid: Tid = None,
    oid: Oid = None,
    config: Config = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase everything of one user: sessions, tasks, memories, secrets, and the user's own record.

    What Mem0 keeps is not erased: if Mem0 is a context provider, the command warns about that. Revoke the
    user's access first: a message sent in the meantime creates the user again. The command can be
    repeated. Exit status 1 if nothing is stored for the user.
    """
    whom, others = _named_user(user, tid, oid)
    checked = load_checked(config)
    records, has_mem0, has_users = run_on(checked, partial(_count_stored, whom=whom, others=others))
    if has_mem0:
        _warn_of_mem0(whom)
    if records:
        print(
            f"{count_text(records, 'record')} of {_user_text(whom)}" + (" would be erased" if dry_run else "")
        )
    if records and not dry_run and not yes:
        if sys.stdin is None:
            raise fail("standard input is closed, so nothing can be confirmed: give --yes")
        typer.confirm("Erase them? This cannot be undone.", abort=True)
    # even without records: the count omits expired ones
    erased = 0 if dry_run else run_on(checked, partial(_erase, whom=whom))
    if not records and not erased:
        print(
            f"nothing is stored for {_user_text(whom)}: ids are compared exactly, Entra's are in lower case"
        )
        warn_if_none(checked, has_users, (), "users")
        raise typer.Exit(1)
    if not dry_run:
        print(f"{_user_text(whom)} is erased")


def _named_user(user: str | None, tid: str | None, oid: str | None) -> tuple[User, list[User]]:
    """The user that is named, and other users that the operator may have meant.

    A key has `~1` in place of each dot of the tenant, and operators may type the dot. `a.b.c` is the user
    `b.c` of the tenant `a`, and may be meant as `c` of `a.b`. Erasing cannot be undone: nothing is guessed.
    """
    try:
        "".join((user or "", tid or "", oid or "")).encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("the ids are not UTF-8 text") from None
    if user is None and tid is not None and oid is not None:
        if not oid:
            raise typer.BadParameter("--oid is empty; only --tid may be")
        return User(tid, oid), []
    if user is None or tid is not None or oid is not None:
        raise typer.BadParameter("give either TID.OID, or --tid and --oid")
    try:
        whom = User.of(user)
    except ValueError as error:
        raise typer.BadParameter(f"{error}; without a tenant, it is .OID") from None
    splits = [User(user[:at], user[at + 1 :]) for at, each in enumerate(user) if each == "."]
    return whom, [other for other in splits if other.oid and other != whom]


async def _count_stored(opened: OpenedState, whom: User, others: list[User]) -> tuple[int, bool, bool]:
    """The number of the user's records, whether Mem0 may have memories of the user, and whether there are
    any users."""
    for other in others:
        if await UserErasure(opened.eraser, other).count():
            raise fail(f"this may also mean {_user_text(other)}: give --tid and --oid")
    records = await UserErasure(opened.eraser, whom).count()
    return records, opened.has_mem0, bool(records) or await Inventory(opened.records).has_users()


async def _erase(opened: OpenedState, whom: User) -> int:
    with progress("records") as report:
        return await UserErasure(opened.eraser, whom).erase(lambda done: report(done, done))


def _user_text(user: User) -> str:
    return f"{user.key} (tenant {user.tid!r}, object id {user.oid!r})"


def _warn_of_mem0(user: User) -> None:
    from tealagents.threads.mem0 import mem0_id

    warn(
        "Mem0 keeps memories of its own, which are not erased here: erase those of its user "
        f"{mem0_id(user)!r} there as well, with the method delete_all(user_id=…) of mem0.MemoryClient() (its "
        "service) or of mem0.Memory.from_config(config) (memories kept here), and remove its file "
        "history_db_path. The page Operations of the documentation has the details."
    )


def owner_command(
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a session, a task or a request.")
    ],
    config: Config = None,
) -> None:
    """Show which user an id from a log belongs to, as `TID.OID`."""
    try:
        canonical = ids.canonical(identifier, "the id")
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None
    checked = load_checked(config)
    users, has_users = run_on(checked, partial(_owners, identifier=canonical))
    if not users:
        warn_if_none(checked, has_users, (), "users")
        raise fail(f"no user has the id {canonical}")
    for user in users:
        print(user.key)


async def _owners(opened: OpenedState, identifier: str) -> tuple[list[User], bool]:
    """The users that have the id, and whether there are any users."""
    users = await opened.directory.candidates(identifier)
    return users, bool(users) or await Inventory(opened.records).has_users()
