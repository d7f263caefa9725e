"""`tealagents chat`: a conversation with an agent in the terminal, on the typed client.

==============  ===========================================================
`finding`       finds the agent at an address
`conversation`  the conversation: messages, commands, approvals
`showing`       prints to the terminal, without control characters
==============  ===========================================================

The command line registers `chat_command`; programs and tests call `chat`.
"""

import sys
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from tealagents.cli.chat.conversation import FAILED, INTERRUPTED, Chat, Input
from tealagents.cli.chat.finding import DEFAULT_URL, NoAgent, find_agent, login_name_for
from tealagents.cli.chat.showing import complain
from tealagents.client import Client, ClientError

__all__ = ["DEFAULT_URL", "chat", "chat_command"]


def chat(
    url: str,
    token: str | None,
    session: str | None,
    task: str | None,
    *,
    console: Console | None = None,
    input: Input | None = None,
) -> int:
    """Chats with the agent at `url`, which is the root of a service or an agent's prefix.

    On a terminal, or with an `input` function that asks for lines, it is a conversation. Otherwise standard
    input is sent as one message, and the answer is printed without formatting.

    Returns:
        The exit status: 0; 1 after an error; 2 if there was nothing to send; 3 if the message led to a pause
        and there is no terminal to decide it; 130 if it was interrupted.
    """
    console = console or Console(highlight=False, emoji=False)
    errors = (
        console if input is not None else Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
    )
    try:
        connect = partial(Client, find_agent(url), token or login_name_for(url))
        with connect() as client:
            here = Chat(connect, client, console, input or _line_of_terminal, session, task)
            if input is not None or (sys.stdin is not None and sys.stdin.isatty()):
                return here.converse()
            # None if it was closed before the start
            return here.answer_once(sys.stdin.read() if sys.stdin is not None else "", errors)
    except (NoAgent, ClientError, ValueError) as error:
        complain(errors, error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def chat_command(
    url: Annotated[str, typer.Argument(help="The service, or one of its agents.")] = DEFAULT_URL,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="TA_TOKEN",
            help="The bearer token; on loopback, your login name by default.",
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="The id of the session to continue or to start.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="The id of the task to continue.")] = None,
) -> None:
    """Start a conversation with an agent in the terminal.

    Piped input is sent as one message, and only the answer is printed: echo hi | tealagents chat
    """
    raise typer.Exit(chat(url, token, session, task))


def _line_of_terminal(prompt: str) -> str:
    with suppress(ImportError):
        import readline  # noqa: F401 — importing it gives `input` editing and history
    return input(prompt)
