"""The conversation: its session and task, the user's commands, and pending approvals."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from rich.console import Console
from rich.text import Text

from tealagents.cli.chat.showing import (
    AnswerView,
    complain,
    exact,
    markdown,
    printable,
    shortened,
    show_approval,
)
from tealagents.client import (
    Action,
    Approval,
    ApprovalPending,
    ApprovalRequired,
    Checkpoint,
    Client,
    ClientError,
    Decision,
    Delta,
    EventStream,
    Failed,
    Final,
    MessageOptions,
    PendingCall,
    Request,
    Retry,
    StreamEvent,
    Timeouts,
    ToolCall,
    ToolResult,
)

#: shows a prompt and returns a line; raises EOFError at the end of the input
Input = Callable[[str], str]

OK, FAILED, UNUSABLE, PAUSED, INTERRUPTED = 0, 1, 2, 3, 130

#: for canceling: who presses Ctrl-C does not wait for a service that is away
SOON, BRIEF = Retry(attempts=2), Timeouts(connect=2.0, call=10.0)

HELP = """\
Type a message. A line that starts with a slash is a command:

  /new            start a new task in this session
  /history        show the task's messages
  /fork [N]       continue in a copy of the task, from checkpoint N or from its end
  /rollback [N]   make checkpoint N the current one; without N, choose from a list
  /decide         approve or reject what the task waits for
  /help, /quit

Ctrl-C cancels the running request, Ctrl-D leaves."""


@dataclass(frozen=True)
class Pause:
    """A pending approval, and the id of its event: the stream continues after it (0 if it was not seen)."""

    approval: Approval
    event_id: int = 0


@dataclass(frozen=True)
class UserDecision:
    """The user's decision. `action` applies to the calls that `decisions` omits."""

    action: Action
    decisions: list[Decision]
    reason: str | None


class Chat:
    """One conversation. `connect` makes further clients like `client`."""

    def __init__(
        self,
        connect: Callable[..., Client],
        client: Client,
        console: Console,
        ask: Input,
        session: str | None,
        task: str | None,
    ) -> None:
        self._connect = connect
        self._client = client
        self._console = console
        self._ask = ask
        self._session_id = session
        self._task_id = task
        self._paused: Pause | None = None

    def converse(self) -> int:
        """Run the conversation until the user leaves. Returns the exit status."""
        lines = [self._greet()]
        while True:
            try:
                self._run_line(lines.pop() if lines else self._ask("\n› ").strip())
            except EOFError:
                return OK
            except (ClientError, ValueError) as error:
                complain(self._console, error)
            except KeyboardInterrupt:
                self._note("(/quit or Ctrl-D leaves)")

    def answer_once(self, message: str, errors: Console) -> int:
        """Send one message and print only the answer; everything else goes to `errors`.

        Returns the exit status.
        """
        if not message.strip():
            complain(errors, ValueError("There is nothing to send: standard input is empty."))
            return UNUSABLE
        options = self._options()
        message = message.removesuffix("\n").removesuffix("\r")
        stream = self._client.stream(message, **options)
        try:
            return self._print_plainly(stream, errors)
        except KeyboardInterrupt:
            try:
                errors.print(Text(self._cancel(stream, message, options)))
            except ClientError as error:
                complain(errors, error)
            return INTERRUPTED

    def _print_plainly(self, stream: EventStream, errors: Console) -> int:
        shown = ""
        for event in stream:
            if isinstance(event, Delta):
                shown += event.text
                self._print_as_is(event.text)
            elif isinstance(event, Final):
                self._print_as_is("" if shown else event.answer.output or "")
                self._print_as_is("\n")
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, ApprovalRequired):
                show_approval(errors, event.approval)
                command = f"tealagents chat {self._client.base_url} --task {event.task_id}"
                errors.print(Text(f"To decide: {command}"))
                return PAUSED
        return OK

    def _print_as_is(self, text: str) -> None:
        text = printable(text) if self._console.is_terminal else text
        self._console.file.write(text)
        self._console.file.flush()

    def _greet(self) -> str:
        """Show where the conversation starts. Returns the first command to run, or an empty line."""
        self._console.print(Text(f"{self._client.base_url} — /help lists the commands.", "dim"))
        if self._task_id is None:
            return ""
        task = self._client.task(self._task_id)
        self._session_id = task.session_id
        self._note(f"continuing task {task.task_id} ({task.status}); /history shows it")
        return "/decide" if task.status == "Paused" else ""

    def _run_line(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        commands: dict[str, Callable[[str], None]] = {
            "/new": self._new,
            "/history": self._history,
            "/fork": self._fork,
            "/rollback": self._rollback,
            "/decide": lambda _: self._decide(self._paused or self._pending()),
            "/help": lambda _: self._console.print(Text(HELP)),
            "/quit": self._quit,
            "/exit": self._quit,
        }
        if not line:
            return
        if not line.startswith("/"):
            self._say(line)
        elif command in commands:
            commands[command](rest.strip())
        else:
            raise ValueError(f"There is no command {command}; /help lists them.")

    # --- messages and answers -------------------------------------------------------------------------

    def _say(self, message: str, *, supersede: bool = False) -> None:
        options = self._options(supersede=supersede)
        stream = self._client.stream(message, **options)
        try:
            self._show(stream)
        except ApprovalPending:
            self._ask_about_pause(message)
        except KeyboardInterrupt:
            self._note(self._cancel(stream, message, options))
        else:
            self._decide(self._paused)

    def _options(self, *, supersede: bool = False) -> MessageOptions:
        return {
            "session_id": self._session_id,
            "task_id": self._task_id,
            "idempotency_key": str(uuid.uuid4()),
            "supersede": supersede,
        }

    def _show(self, stream: EventStream) -> None:
        """Show the events of a stream as they arrive. A pause at its end is kept in `_paused`."""
        self._paused = None
        with stream, AnswerView(self._console) as view:
            for event in stream:
                if isinstance(event, Delta):
                    view.add(event.text)
                    continue
                shown = view.finish()
                self._show_event(event, answer_shown=shown)

    def _show_event(self, event: StreamEvent, *, answer_shown: bool) -> None:
        match event:
            case Request():
                self._show_ids(event)
            case Delta():
                pass  # `_show` adds it to the answer
            case ToolCall():
                self._console.print(Text(exact(f"→ {event.tool} {event.arguments}"), "cyan"))
            case ToolResult():
                style = "red" if event.is_error else "dim cyan"
                self._console.print(Text(f"← {shortened(printable(event.output))}", style))
            case ApprovalRequired():
                self._paused = Pause(event.approval, event.id or 0)
            case Final():
                if not answer_shown and event.answer.output:
                    self._console.print(markdown(event.answer.output))
                self._note(f"{event.answer.usage.total_tokens} tokens")
            case Failed():
                complain(self._console, event.error)
            case _:
                assert_never(event)

    def _show_ids(self, request: Request) -> None:
        """Show the request id, and the session and task ids if they are new."""
        if request.session_id != self._session_id or self._task_id is None:
            self._note(f"session {request.session_id}")
        if request.task_id != self._task_id:
            self._note(f"task {request.task_id}")
        self._session_id, self._task_id = request.session_id, request.task_id
        waits = ", which is waiting for its turn" if request.status == "Queued" else ""
        self._note(f"request {request.request_id}{waits}")

    def _cancel(self, stream: EventStream, message: str, options: MessageOptions) -> str:
        """Cancel the stream's request, even if its ids have not arrived yet. Returns a note for the user."""
        request_id = stream.request_id
        with self._connect(retry=SOON, timeouts=BRIEF) as client:
            if request_id is None:
                # with the same idempotency key, the service returns the ids and starts no second request
                accepted = client.background(message, **options)
                request_id, self._task_id = accepted.request_id, accepted.task_id
                self._session_id = accepted.session_id
            return f"request {request_id}: {client.cancel(request_id).status}"

    # --- approvals ------------------------------------------------------------------------------------

    def _pending(self) -> Pause:
        """The task's pending pause."""
        for approval in self._client.approvals(status="pending"):
            if approval.task_id == self._task_id:
                return Pause(approval)
        raise ValueError("This task is not waiting for a decision.")

    def _ask_about_pause(self, message: str) -> None:
        pause = self._pending()
        show_approval(self._console, pause.approval)
        choice = self._choose("[d]ecide it, [s]end your message instead, or [l]ater?", "dsl")
        if choice == "d":
            self._decide(pause)
        elif choice == "s":
            self._say(message, supersede=True)

    def _decide(self, pause: Pause | None) -> None:
        """Ask for a decision and carry it out; the same for each pause that follows from it."""
        while pause is not None:
            show_approval(self._console, pause.approval)
            try:
                decision = self._user_decision(pause.approval)
            except (EOFError, KeyboardInterrupt):
                decision = None
            if decision is None:
                self._paused = pause
                self._note("The request stays paused; type /decide to return to it.")
                return
            self._send_decision(pause, decision)
            pause = self._paused

    def _send_decision(self, pause: Pause, decision: UserDecision) -> None:
        stream = self._client.resume_stream(
            pause.approval,
            decision.action,
            reason=decision.reason,
            decisions=decision.decisions,
            after=pause.event_id,
        )
        try:
            self._show(stream)
        except KeyboardInterrupt:
            request_id = pause.approval.request_id
            with self._connect(retry=SOON, timeouts=BRIEF) as client:
                self._note(f"request {request_id}: {client.cancel(request_id).status}")

    def _user_decision(self, approval: Approval) -> UserDecision | None:
        """The user's decision on each call; None to decide later."""
        if not approval.tool_calls:
            choice = self._choose("[a]pprove, [r]eject or [l]ater?", "arl")
            return None if choice == "l" else self._with_reason(_ACTIONS[choice], [])
        decisions: list[Decision] = []
        for call in approval.tool_calls:
            decision = self._decision(call, alone=len(approval.tool_calls) == 1)
            if decision is None:
                return None
            if isinstance(decision, str):
                # the remaining calls get this action; the earlier ones keep their own decisions
                return self._with_reason(decision, decisions)
            decisions.append(decision)
        return self._with_reason(decisions[-1].action, decisions)

    def _decision(self, call: PendingCall, *, alone: bool) -> Decision | Action | None:
        if not alone:
            self._console.print(Text(exact(f"{call.tool} {call.arguments}")))
        choice = self._choose(*_choices(call, alone=alone))
        if choice == "l":
            return None
        if choice in "AR":
            return _ACTIONS[choice.lower()]
        if choice == "e":
            return Decision(call.id, "approve", self._ask_arguments(call))
        return Decision(call.id, _ACTIONS[choice])

    def _ask_arguments(self, call: PendingCall) -> dict[str, Any]:
        while True:
            line = self._ask(f"arguments instead of {exact(call.arguments)}: ")
            try:
                arguments = json.loads(line)
            except ValueError as error:
                complain(self._console, ValueError(f"That is not JSON: {error}."))
                continue
            if isinstance(arguments, dict):
                return arguments
            complain(self._console, ValueError('Arguments must be an object, such as {"path": "/tmp/x"}.'))

    def _with_reason(self, action: Action, decisions: list[Decision]) -> UserDecision:
        rejects = action == "reject" or any(decision.action == "reject" for decision in decisions)
        reason = self._ask("reason, for the model (may be empty): ").strip() if rejects else ""
        return UserDecision(action, decisions, reason or None)

    def _choose(self, question: str, choices: str) -> str:
        while True:
            answer = self._ask(f"{question} ").strip()[:1]
            if answer and answer in choices:
                return answer

    # --- commands -------------------------------------------------------------------------------------

    def _new(self, _: str) -> None:
        self._task_id, self._paused = None, None
        self._note("the next message starts a new task")

    def _history(self, _: str) -> None:
        for message in self._client.messages(self._task()):
            style = {"user": "bold", "tool": "dim cyan"}.get(message.role, "")
            self._console.print(Text(f"{message.role}:", style))
            body = markdown(message.text) if message.role == "assistant" else Text(printable(message.text))
            self._console.print(body)
            for call in message.tool_calls:
                self._console.print(Text(exact(f"→ {call.tool} {call.arguments}"), "cyan"))

    def _fork(self, number: str) -> None:
        checkpoint = self._checkpoint(number).checkpoint_id if number else None
        self._task_id = self._client.fork(self._task(), checkpoint_id=checkpoint).task_id
        self._paused = None
        self._note(f"this is task {self._task_id} now; the original is unchanged")

    def _rollback(self, number: str) -> None:
        if not number:
            self._list_checkpoints()
            number = self._ask("checkpoint: ").strip()
        if number:
            self._client.rollback(self._task(), self._checkpoint(number).checkpoint_id)
            self._note(f"the task continues from checkpoint {number}")

    def _list_checkpoints(self) -> None:
        asked = {
            message.request_id: message.text
            for message in self._client.messages(self._task())
            if message.role == "user"
        }
        for number, checkpoint in enumerate(self._client.checkpoints(self._task()), 1):
            mark = "*" if checkpoint.current else " "
            when = f"{checkpoint.created_at:%Y-%m-%d %H:%M:%S}" if checkpoint.created_at else ""
            question = shortened(printable(asked.get(checkpoint.request_id, "(not on the current path)")), 60)
            self._console.print(Text(f"{mark} {number}  {when}  {question}"))

    def _checkpoint(self, number: str) -> Checkpoint:
        """The checkpoint with this number in the list, which is newest first."""
        known = list(self._client.checkpoints(self._task()))
        if not (number.isdecimal() and 1 <= int(number) <= len(known)):
            raise ValueError(f"There is no checkpoint {number}; /rollback lists them.")
        return known[int(number) - 1]

    def _quit(self, _: str) -> None:
        raise EOFError

    def _task(self) -> str:
        if self._task_id is None:
            raise ValueError("There is no task yet: say something first.")
        return self._task_id

    def _note(self, text: str) -> None:
        self._console.print(Text(text, "dim"))


def _choices(call: PendingCall, *, alone: bool) -> tuple[str, str]:
    """The question about a call, and the letters that are valid answers."""
    if not call.plugin_name:  # a client runs this tool and sends its output
        return ("[r]eject, or [l]ater?", "rl") if alone else ("[r]eject, [R]eject all, or [l]ater?", "rRl")
    if alone:
        return "[a]pprove, [r]eject, [e]dit, or [l]ater?", "arel"
    return "[a]pprove, [r]eject, [e]dit, [A]pprove all, [R]eject all, or [l]ater?", "arelAR"


_ACTIONS: dict[str, Action] = {"a": "approve", "r": "reject"}
