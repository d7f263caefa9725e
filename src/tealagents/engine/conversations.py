"""The conversations of tasks: read from their logs, and cached between turns."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tealagents.domain.errors import Conflict
from tealagents.domain.models import Head, Json, Message
from tealagents.engine.agent import AgentSpec
from tealagents.engine.prompt import effects_note
from tealagents.engine.recorder import Recorder
from tealagents.engine.toolbox import CallContext
from tealagents.engine.turn import TurnInput
from tealagents.state.history import before_open_tool_round, in_call_order
from tealagents.state.memories import Memory
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks
from tealagents.threads.model_faults import faults_of
from tealagents.threads.views import Part
from tealagents.threads.windows import Window, Windows, encoded_by, in_parts

#: seconds between two looks for what has not been used for long
ATTEND_SECONDS = 60.0


class TaskConversation:
    """One task's conversation, as a turn reads it (`engine.turn.Conversation`)."""

    def __init__(self, conversations: "TaskConversations", writer: TaskWriter) -> None:
        self._conversations = conversations
        self._writer = writer
        #: the earlier messages for a view; set by `remembered`
        self._window: Window[Part] | None = None

    @property
    def remote_id(self) -> str | None:
        """After a pause it is the request's own: None if the request ran while the agent was local, since the
        model service then lacks what it did. A local agent continues no remote conversation."""
        request = self._writer.request
        kept = request.remote_id if request.approvals else self._writer.head.remote_id
        return kept if self._conversations.agent.thread_kind == "remote" else None

    async def recall(self, recorder: Recorder) -> None:
        """Reads the messages and tool calls from before the request's pause back into its recorder.

        Renews the expiry of the request's events if that is due. Raises `Fenced` if the request has been
        ended or erased meanwhile: none of the approved calls may be made then.
        """
        writer, history = self._writer, self._conversations.tasks.history
        head, partition = writer.head, writer.partition
        if writer.request.events_kept_at == writer.request.resumed_at:
            await self._keep_events()
        said = await history.messages_of(partition, writer.request, head.tail_seq)
        done = await history.produced(partition, head)
        await writer.rebase()
        recorder.messages.extend(said)
        recorder.intents = {tool.call_id: tool for tool in done.tools} | recorder.intents

    async def _keep_events(self) -> None:
        writer, streams = self._writer, self._conversations.tasks.streams
        while True:
            try:
                await streams.keep(writer.partition, writer.request.request_id, writer.request_version)
            except Conflict:
                await writer.rebase()
            else:
                return

    def turn_input(self, recorder: Recorder, context: CallContext) -> TurnInput:
        """The input of the request's turn."""
        writer, effects = self._writer, effects_note(self._writer.head)
        return TurnInput(
            context=context,
            said=before_open_tool_round(in_call_order(recorder.messages)),
            resumed=writer.message is None,
            setup=writer.request.setup,
            notes=[effects] if effects else [],
        )

    async def remembered(self) -> Json:
        kept, partition, head = self._conversations, self._writer.partition, self._writer.head
        if not kept.agent.remembers:  # reading a context only to pass it on would cost a read
            return {}
        if kept.agent.thread_kind == "remote":
            return await kept.tasks.records.context_of(partition, head) or {}
        if kept.agent.view is None:
            return (await kept.encoded.load(partition, head)).context or {}
        self._window = await kept.viewed.load(partition, head)
        return self._window.context or {}

    async def encoded(self) -> Sequence[bytes]:
        kept, partition, head = self._conversations, self._writer.partition, self._writer.head
        parts = await kept.encoded.whole(partition, await kept.encoded.load(partition, head))
        if kept.agent.thread_kind == "remote":
            kept.encoded.forget(head.task_id)  # from here on the model service has it
        return parts

    async def earlier(self) -> AsyncGenerator[Part]:
        window = self._window
        assert window is not None
        turn = int((window.context or {}).get("turn", 0))
        async with aclosing(self._conversations.viewed.rounds(self._writer.partition, window)) as rounds:
            async for known in rounds:
                begins, older = known.first_seq - window.path[0][0] <= 1, turn - known.rounds
                for n, part in reversed(list(enumerate(known.parts))):
                    part.turn, part.first = turn, begins and n == 0
                    yield part
                    turn -= part.begins
                turn = older

    def looked(self) -> None:
        assert self._window is not None
        self._conversations.viewed.shrink(self._window)

    def memory(self, provider: str) -> Memory:
        request, records = self._writer.request, self._conversations.tasks.records
        return Memory(
            records,
            self._writer.partition,
            provider,
            request.session_id,
            request.task_id,
            read_only=request.is_unstored,
        )


class TaskConversations:
    """The conversations of one agent's tasks, and the caches that keep them for the next turn."""

    def __init__(self, agent: AgentSpec, tasks: Tasks) -> None:
        self.agent = agent
        self.tasks = tasks
        history, records = tasks.history, tasks.records
        remembers = agent.remembers and agent.thread_kind == "local"
        #: caches of messages in parts, for agents with a view, and of encoded messages, for all others
        self.viewed = Windows(history, records, in_parts, remembers=remembers)
        encode = faults_of(agent.model)(encoded_by(agent.model))
        self.encoded = Windows(history, records, encode, remembers=remembers)
        self.windows: Windows[Part] | Windows[bytes] = self.encoded if agent.view is None else self.viewed

    def extend(
        self, head: Head, first_seq: int, messages: Sequence[Message] = (), context: Json | None = None
    ) -> None:
        """Updates the cache after a request whose entries begin at `first_seq`, and which left `head`.

        Without messages, it ended without an answer.
        """
        if self.agent.thread_kind != "remote":
            self.windows.extend(head, first_seq, messages, context)

    def forget(self, task_id: str) -> None:
        self.windows.forget(task_id)

    async def attend(self) -> None:
        """Drops what has not been used for long, as long as the service runs."""
        while True:
            await self.tasks.records.clock.sleep(ATTEND_SECONDS)
            self.windows.drop_unused()
