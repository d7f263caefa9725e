"""The terminal conversation, against a service that keeps the contract."""

import codecs
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Self, cast

import httpx
import pytest
import typer
from contract_server import ContractServer, Problem
from rich.console import Console
from rich.markdown import Markdown
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tealagents.cli.chat import chat, chat_command, showing
from tealagents.cli.chat.conversation import Chat
from tealagents.cli.chat.finding import NoAgent, find_agent, joined, login_name_for
from tealagents.cli.chat.showing import AnswerView, exact, finished_length, printable
from tealagents.client import NO_RETRY, Client, Retry
from tealagents.testing.faults import FaultProxy, Faults
from tealagents.testing.waits import until

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture
def service() -> Iterator[ContractServer]:
    with ContractServer() as server:
        yield server


class LoopState:
    """Runs `chat` with lines said one after the other; `saw` is what the screen showed."""

    def __init__(self, service: ContractServer) -> None:
        self.service = service
        self.user = str(uuid.uuid4())
        self.asked: list[str] = []
        self.saw = ""

    def __call__(
        self, *lines: str | Callable[[], str], session: str | None = None, task: str | None = None
    ) -> int:
        left = list(lines)
        screen = io.StringIO()
        console = Console(file=screen, width=200, highlight=False)

        def answer(prompt: str) -> str:
            self.asked.append(prompt)
            self.saw = screen.getvalue()
            if not left:
                raise EOFError
            line = left.pop(0)
            return line if isinstance(line, str) else line()

        code = chat(self.service.root, self.user, session, task, console=console, input=answer)
        self.saw = screen.getvalue()
        return code

    def ids(self, kind: str) -> list[str]:
        return re.findall(rf"{kind} ({UUID})", self.saw)


@pytest.fixture
def talk(service: ContractServer) -> LoopState:
    return LoopState(service)


def interrupt() -> str:
    """Instead of a line: the user presses Ctrl-C."""
    raise KeyboardInterrupt


def test_conversation(talk: LoopState) -> None:
    """A message is answered, the next one continues its task, and leaving is no failure."""
    assert talk("hello **you**", "and more", "", "/quit", "never said") == 0
    assert "hello you" in talk.saw
    assert "and more" in talk.saw
    assert "never said" not in talk.saw
    assert len(talk.ids("session")) == len(talk.ids("task")) == 1
    assert len(set(talk.ids("request"))) == 2


def test_new_history_fork_and_rollback(talk: LoopState) -> None:
    """Tasks are begun, shown, rolled back and forked by command."""
    assert talk("one", "two", "/rollback", "2", "/history", "/fork", "three", "/new", "four", "/fork 1") == 0
    assert "* 1" in talk.saw
    assert "  2" in talk.saw
    history = talk.saw.split("continues from checkpoint 2")[1].split("this is task")[0]
    assert "one" in history
    assert "two" not in history
    assert len(set(talk.ids("task"))) == 4
    assert len(set(talk.ids("session"))) == 1


def test_commands_that_cannot_be(talk: LoopState) -> None:
    """A wrong command shows what is right, and the conversation continues."""
    assert talk("/history", "/nonsense", "/help", "hello", "/rollback 7", "/decide", interrupt, "hello") == 0
    for said in ("There is no task yet", "no command /nonsense", "/rollback [N]", "no checkpoint 7"):
        assert said in talk.saw
    assert "is not waiting for a decision" in talk.saw
    assert "Ctrl-D leaves" in talk.saw


def test_approving(talk: LoopState, service: ContractServer) -> None:
    """An approval shows the call in full; approved, its call and result are shown, and the answer."""
    assert talk("delete /data/x", "?", "a") == 0
    assert 'Shell-delete {"path": "/data/x"}' in talk.saw
    assert "← deleted" in talk.saw
    assert "deleted /data/x" in talk.saw
    assert [run.tool_runs for run in service.runs.values()] == [["/data/x"]]


def test_rejecting_and_editing(talk: LoopState, service: ContractServer) -> None:
    """A rejection carries a reason; arguments can be edited, and must be an object."""
    assert talk("delete /data/x", "r", "not that", "delete /data/y", "e", "{", "7", '{"path": "/tmp/z"}') == 0
    assert "I was told not to: not that" in talk.saw
    assert "That is not JSON" in talk.saw
    assert "Arguments must be an object" in talk.saw
    assert [run.tool_runs for run in service.runs.values()] == [[], ["/tmp/z"]]


def test_second_pause_is_asked_for_again(talk: LoopState, service: ContractServer) -> None:
    """Every pause of a request is a question of its own."""
    assert talk("delete twice", "a", "a") == 0
    (run,) = service.runs.values()
    assert run.status == "Completed"
    assert len(run.tool_runs) == 2


@pytest.mark.parametrize("leave", ["l", interrupt], ids=["later", "interrupted"])
def test_deciding_later(talk: LoopState, service: ContractServer, leave: str | Callable[[], str]) -> None:
    """A pause can wait; the next message asks what to do about it, and it can be sent in its place."""
    assert talk("delete /a", leave, "hello", "d", "a", "delete /b", leave, "instead", "s") == 0
    first, second, third = service.runs.values()
    assert (first.tool_runs, second.status, third.output) == (["/a"], "Canceled", "instead ")


def test_coming_back_to_a_paused_task(talk: LoopState, service: ContractServer) -> None:
    """Continuing a task that waits for a decision asks for it at once; later is possible too."""
    talk("delete /a", "l")
    (task,) = set(talk.ids("task"))
    assert talk("l", "/decide", "a", task=task) == 0
    (run,) = service.runs.values()
    assert run.tool_runs == ["/a"]
    assert talk(task=str(uuid.uuid4())) == 1
    assert "No such task" in talk.saw


def test_a_pause_that_was_decided_elsewhere_does_not_end_the_chat_that_began_with_it(
    talk: LoopState, service: ContractServer
) -> None:
    """It is refused in a sentence, as later in the conversation."""
    talk("delete /a", "l")
    (run,) = service.runs.values()

    def decided_elsewhere() -> str:
        run.decisions[str(run.pending)] = {"action": "reject"}
        return "a"

    assert talk(decided_elsewhere, "/help", task=run.task.task_id) == 0
    assert "It was decided otherwise." in talk.saw
    assert "Type a message." in talk.saw


def test_given_session(talk: LoopState) -> None:
    """A session of one's own can be named."""
    session = str(uuid.uuid4())
    talk("hello", session=session)
    assert talk.ids("session") == [session]


def test_failures_are_sentences(talk: LoopState, service: ContractServer) -> None:
    """What goes wrong is reported in the service's words, with its code, and the conversation continues."""
    assert talk("fail", "hello") == 0
    assert "The model service broke off." in talk.saw
    assert "model_error" in talk.saw
    assert "half an" in talk.saw
    assert "Traceback" not in talk.saw


def test_refused_token(talk: LoopState, service: ContractServer) -> None:
    """A token that is refused leads to how one is given."""

    def with_a_refusal() -> str:
        service.faults.append(Problem(401, "unauthenticated", "This token has expired."))
        return "hello"

    assert talk(with_a_refusal) == 0
    assert "This token has expired." in talk.saw
    assert "--token" in talk.saw


# --- without a terminal -------------------------------------------------------------------------------


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(chat_command)
    return app


def test_piped(command: typer.Typer, service: ContractServer) -> None:
    """Piped input is one message; only its plain answer is printed."""
    result = CliRunner().invoke(command, [service.root, "--token", "me"], input="hi **there**\nfriend\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hi **there** friend \n", "")


def test_piped_without_an_answer(command: typer.Typer, service: ContractServer) -> None:
    """A failure, a pause without an approver, and nothing to send: stderr says so, the code differs."""
    run = CliRunner().invoke
    failed = run(command, [service.root], input="fail")
    assert (failed.exit_code, failed.stdout) == (1, "half an ")
    assert "broke off" in failed.stderr
    paused = run(command, [service.root], input="delete /x")
    assert paused.exit_code == 3
    assert "Shell-delete" in paused.stderr
    assert "--task" in paused.stderr
    assert run(command, [service.root], input="\n").exit_code == 2
    assert run(command, ["http://127.0.0.1:9"], input="hi").exit_code == 1
    bad = run(command, [service.root, "--task", "../x"], input="hi")
    assert (bad.exit_code, "No such task" in bad.stderr) == (1, True)


def test_token_from_the_environment(
    command: typer.Typer, service: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token can stay out of the process list."""
    monkeypatch.setenv("TA_TOKEN", "somebody")
    assert CliRunner().invoke(command, [service.root], input="hi").exit_code == 0
    assert [task.owner for task in service.tasks.values()] == ["somebody"]


class _Interrupting(io.StringIO):
    """Standard output; when the first text is written, the user presses Ctrl-C."""

    def write(self, text: str) -> int:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_service_is_away_ends_as_interrupted(service: ContractServer) -> None:
    """After few attempts, it says that the request could not be canceled."""
    asked: list[Retry] = []

    def connect_to_nothing(*, retry: Retry, **_: object) -> Client:
        asked.append(retry)
        return Client("http://127.0.0.1:9/A/1", retry=NO_RETRY)

    stdout, stderr = Console(file=_Interrupting()), Console(file=io.StringIO())
    with Client(service.url, "me") as client:
        here = Chat(connect_to_nothing, client, stdout, input, None, None)
        assert here.answer_once("hello", stderr) == 130
    assert "no answer from the service" in cast(io.StringIO, stderr.file).getvalue()
    assert [retry.attempts for retry in asked] == [2]


def test_the_command_that_decides_a_pause_is_shown_as_it_is() -> None:
    """An IPv6 address in brackets is text, and not markup of the library that prints it."""
    ids = {"session_id": "s", "task_id": "t", "request_id": "r"}
    pause = {**ids, "status": "Paused", "content": {**ids, "approval_id": "a", "tool_calls": []}}
    stream = f"event: approval-required\nid: 1\ndata: {json.dumps(pause)}\n\n"
    paused = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text=stream)
    stderr = Console(file=io.StringIO(), width=200)
    with httpx.Client(transport=httpx.MockTransport(lambda _: paused)) as http:
        connect = partial(Client, "http://[fd00::1]:8000/A/1", http=http)
        here = Chat(connect, connect(), Console(file=io.StringIO()), input, None, None)
        assert here.answer_once("delete /x", stderr) == 3
    assert "tealagents chat http://[fd00::1]:8000/A/1 --task t" in cast(io.StringIO, stderr.file).getvalue()


# --- with a real terminal -----------------------------------------------------------------------------


class Terminal:
    """`chat` in a process of its own, on a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        code = "import typer; from tealagents.cli.chat import chat_command; typer.run(chat_command)"
        self._fd, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, url],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        )
        os.close(child)
        self.screen = ""
        self._seen = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def say(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str) -> None:
        """Reads until `text` is on the screen, from where the last wait ended."""
        deadline = time.monotonic() + 30
        while (place := self.screen.find(text, self._seen)) < 0:
            readable, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} did not come; there was {self.screen[self._seen :]!r}"
            self.screen += self._decoder.decode(os.read(self._fd, 4096))
        self._seen = place + len(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


def test_ctrl_c_cancels_and_stays(service: ContractServer) -> None:
    """Ctrl-C cancels the running request and comes back to the prompt; Ctrl-D leaves."""
    with Terminal(service.root) as terminal:
        terminal.wait_for("›")
        terminal.say("hold on\n")
        terminal.wait_for("held")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("Canceled")
        terminal.wait_for("›")
        terminal.say("still *here*?\n")
        terminal.wait_for("tokens")
        terminal.wait_for("›")
        terminal.say("\x04")
        assert terminal.process.wait(30) == 0
    assert [run.status for run in service.runs.values()] == ["Canceled", "Completed"]
    assert "Traceback" not in terminal.screen


def test_ctrl_c_before_the_ids_arrived(service: ContractServer) -> None:
    """A message whose request is not known yet is canceled too, found by its idempotency key."""
    with (
        FaultProxy("127.0.0.1", service.port) as proxy,
        Terminal(proxy.url_for(service.root)) as terminal,
    ):
        terminal.wait_for("›")
        proxy.upcoming.append(Faults(drop_replies=True))
        terminal.say("hold on\n")
        until(lambda: service.runs)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("Canceled")
        terminal.say("/quit\n")
        assert terminal.process.wait(30) == 0
    (run,) = service.runs.values()
    assert run.status == "Canceled"


# --- parts --------------------------------------------------------------------------------------------


def test_finding_the_agent(service: ContractServer) -> None:
    """A service's root leads to its only agent, a prefix is taken as it is, anything else is explained."""
    assert find_agent(service.root) == find_agent(service.root + "/") == service.url
    assert find_agent(service.url) == service.url
    with pytest.raises(NoAgent, match="tealagents serve"):
        find_agent("http://127.0.0.1:9")
    with pytest.raises(NoAgent, match="no agent"):
        find_agent(service.root + "/nothing")
    agents = [{"url": "/A/1"}, {"url": "/B/1"}]
    service.faults.append(JSONResponse({"agents": agents}))
    with pytest.raises(NoAgent, match=f"chat {service.root}/B/1"):
        find_agent(service.root)
    for other in (["a"], None, [{"url": "http://other/A/1"}], [{"url": 5}]):  # another kind of service
        service.faults.append(JSONResponse({"agents": other}))
        with pytest.raises(NoAgent, match="no agent"):
            find_agent(service.root)
    service.faults.append(Response("<html>", 502))
    with pytest.raises(NoAgent, match="returned HTTP 502: the service is unavailable"):
        find_agent(service.root)
    refused = {"detail": "Host: must be a loopback address. Set TA_AUTH on the service."}
    service.faults.append(JSONResponse(refused, 400))
    with pytest.raises(NoAgent, match=f"^{service.root} answered with an error: {refused['detail']}$"):
        find_agent(service.root)
    with pytest.raises(NoAgent, match=r"no agent at .*/console/\. Its address is of the form .*/Name/ver"):
        find_agent(service.url + "/console/")
    with pytest.raises(NoAgent, match="Nothing answers"):
        find_agent("http://[")
    secure = service.root.replace("http:", "https:")
    with pytest.raises(NoAgent, match=f"^{secure} answers in plain http: write {service.root}.$"):
        find_agent(secure)
    for rest in ("?x=1", "/?x=1#y", "#/tasks"):
        with pytest.raises(NoAgent, match=r"without a query and a fragment: write [^?#]+\.$"):
            find_agent(service.url + rest)
    for text in ("agent.yaml", "localhost:8000"):
        with pytest.raises(NoAgent, match=f"{text} is not a URL.* http://127.0.0.1:8000"):
            find_agent(text)


@pytest.mark.parametrize(
    "address",
    [
        "http://ann:canary@127.0.0.1:1/",
        "htps://ann:canary@127.0.0.1:1",
        "ann:canary@127.0.0.1:1",
        "http://ann:canary@[::1",
        "http://ann:ca/nary@127.0.0.1:1",
        "http://ann:ca#nary@127.0.0.1:1",
    ],
)
def test_what_is_said_of_an_address_holds_no_password(address: str) -> None:
    """However it is mistyped; it ends up in logs."""
    with pytest.raises(NoAgent) as said:
        find_agent(address)
    assert not [part for part in ("ann", "ca", "nary") if part in str(said.value).replace("cannot", "")]


def test_an_agent_on_loopback_is_found_through_no_proxy(
    service: ContractServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has another loopback."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert find_agent(service.root) == service.url


def test_a_proxy_that_cannot_be_used_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """As desktops and tunnels set one for everything."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(NoAgent, match=r"http://127.0.0.1:9 cannot be called.*SOCKS.*NO_PROXY"):
        find_agent("http://127.0.0.1:9")


@pytest.mark.parametrize("path", ["/A/1", "/below/A/1"])
def test_service_below_a_path(path: str) -> None:
    """Where a proxy has put the service below a path the agent is there too, whether it says so or not."""
    assert joined("http://h:1/below", path) == "http://h:1/below/A/1"
    assert joined("http://h:1", path) == f"http://h:1{path}"


def test_login_name_stays_on_this_machine() -> None:
    """Only a service on loopback is sent the user's name without an option."""
    assert login_name_for("http://127.0.0.1:8000/A/1")
    assert login_name_for("https://agents.example.com/A/1") == ""


def test_nothing_reaches_the_terminal_that_it_obeys() -> None:
    """Escape sequences, carriage returns and reordering marks are shown, not obeyed."""
    assert printable("a\x1b[2Jb\r\nc\td\x9b\u202ee\u061c") == "a\\x1b[2Jb\nc\td\\x9b\\u202ee\\u061c"
    assert exact('{"path": "/tmp\u200b/x\n\u00a0"}') == '{"path": "/tmp\\u200b/x\\n\\xa0"}'


@pytest.mark.parametrize(
    "unseen",
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u2060\u2800\u3164\ufe00\ufe0f\uffa0\U000e0001\U000e0100\U000e01ef",
)
def test_what_is_approved_hides_nothing(unseen: str) -> None:
    """Two paths that differ in what no terminal draws do not look the same."""
    code = f"{ord(unseen):08x}".lstrip("0")
    assert re.fullmatch(rf"/data/x\\[xuU]0*{code}", exact(f"/data/x{unseen}"))


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("one", ""),
        ("one\n\n", ""),
        ("one\n\ntwo", "one\n\n"),
        ("one\n\ntwo\n\nthree", "one\n\ntwo\n\n"),
        ("- a\n\n  more of a", ""),
        ("```\na\n\nb", ""),
        ("```\na\n\nb\n```\n\nc", "```\na\n\nb\n```\n\n"),
        ("~~~\n```\n\nb", ""),
    ],
)
def test_finished_markdown(text: str, finished: str) -> None:
    """A block is finished when another one has begun behind a blank line, outside of code."""
    assert text[: finished_length(text)] == finished


def test_growing_answer() -> None:
    """However an answer is cut into pieces, all of it is on the screen when it is finished, once."""
    text = "# Title\n\nFirst paragraph.\n\n```python\na = 1\n\nb = 2\n```\n\n- one\n- two\n\nlast words"
    for size in (1, 3, 50):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=60, height=40, color_system=None)
        with AnswerView(console) as view:
            for start in range(0, len(text), size):
                view.add(text[start : start + size])
            assert view.finish()
        lasting = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", screen.getvalue())
        for word in ("Title", "First paragraph.", "a = 1", "b = 2", "last words"):
            assert word in lasting


def test_a_piece_is_drawn_later_with_those_that_come_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """To parse all of an unfinished block for each piece would let the terminal fall behind a long one."""
    parsed = 0

    def counted(text: str) -> Markdown:
        nonlocal parsed
        parsed += threading.current_thread() is threading.main_thread()
        return Markdown(text)

    monkeypatch.setattr(showing, "markdown", counted)
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=40, color_system=None)
    with AnswerView(console) as view:
        for n in range(300):
            view.add(f"- item {n}\n")
        assert parsed <= 1
