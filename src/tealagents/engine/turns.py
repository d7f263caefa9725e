"""A request's turn in its conversation: what the model is sent, what it may call, what is remembered."""

from collections.abc import Sequence
from copy import deepcopy

from tealagents.domain import ids
from tealagents.domain.models import Head, Item, Json, Message, RequestRecord, Step
from tealagents.engine.agent import Agent
from tealagents.engine.histories import Histories
from tealagents.engine.prompt import (
    Prompt,
    RemotePrompt,
    ViewedPrompt,
    context_note,
    effects_note,
)
from tealagents.engine.toolbox import Toolbox
from tealagents.state.memories import Memory
from tealagents.state.task_writer import TaskWriter
from tealagents.state.tasks import Tasks
from tealagents.threads.context import Gathered, Invocation, Providers
from tealagents.threads.views import Report, Upcoming
from tealagents.threads.windows import Windows

#: seconds that context providers get, in all, to hear of a request that failed
LAST_WORDS_SECONDS = 2.0


class Turn:
    """One request's part of a conversation, from its message to its end or its pause."""

    def __init__(
        self,
        prompt: Prompt,
        toolbox: Toolbox,
        *,
        providers: Providers | None = None,
        gathered: Gathered | None = None,
        context: Json | None = None,
    ) -> None:
        """`context` is what the conversation remembers, to be kept with the checkpoint; None: nothing."""
        self.prompt = prompt
        self.toolbox = toolbox
        self._providers = providers or Providers()
        self._gathered = gathered or Gathered()
        self._context = context
        self._told = False

    @property
    def reports(self) -> Sequence[Report]:
        """What context providers have added, and which have failed."""
        return self._gathered.reports

    async def completed(self, response: Sequence[Message]) -> tuple[Json | None, list[Report]]:
        """The model has answered: what the conversation remembers now, and what the trace is told.

        `ContextProviderFailed` where a required one fails.
        """
        self._told = True
        reports = await self._providers.invoked(self._gathered, response, None)
        if self._context is None:
            return None, reports
        reports += await self.prompt.settle(response[-1])
        kept = {**self._context, "providers": self._gathered.states}
        return {name: value for name, value in kept.items() if value}, reports

    async def failed(self, response: Sequence[Message], error: BaseException) -> list[Report]:
        """The request ends without an answer."""
        if self._told:
            return []
        self._told = True
        return await self._providers.invoked(self._gathered, response, error, most_seconds=LAST_WORDS_SECONDS)


class Turns:
    """Opens the turns of one agent's tasks, and keeps what the next one needs."""

    def __init__(self, agent: Agent, tasks: Tasks) -> None:
        self._agent = agent
        self._tasks = tasks
        self._histories = Histories(tasks.history, agent.model)
        self._windows = Windows(tasks.history, tasks.records)

    async def open(self, writer: TaskWriter, said: Sequence[Message], *, resumed: bool = False) -> Turn:
        """The turn of a request that has said `said` so far: its message, or all from before a pause."""
        agent, head = self._agent, writer.head
        remembered = await self._remembered(writer)
        gathered = await self._gather(writer, said[0], remembered)
        request = writer.request
        toolbox = agent.toolbox.with_tools(gathered.tools) if gathered.tools else agent.toolbox
        if request.client_tools:
            toolbox = toolbox.with_client_tools(request.client_tools)
        context: Json | None = None
        if agent.view is not None or agent.providers:
            context = {"turn": remembered.get("turn", 0) + 1, "view": deepcopy(remembered.get("view") or {})}
        notes = [*gathered.instructions, *filter(None, [request.instructions, effects_note(head)])]
        new = [*gathered.messages, *_told_by_the_application(request, said[0])]
        if agent.thread_kind == "remote":
            prompt: Prompt = await self._remote(writer, notes, [*new, *said], said, resumed=resumed)
        elif agent.view is not None:
            prompt = await self._viewed(writer, notes, [*new, *said], toolbox, context or {})
        else:
            prompt = await self._whole(writer, notes, [*new, *said])
        return Turn(prompt, toolbox, providers=agent.providers, gathered=gathered, context=context)

    # --- context ---------------------------------------------------------------------------------

    async def _remembered(self, writer: TaskWriter) -> Json:
        """What the conversation remembers as of its checkpoint."""
        agent = self._agent
        if agent.view is not None and agent.thread_kind == "local":
            return (await self._windows.load(writer.partition, writer.head)).context
        if agent.view is not None or agent.providers:
            return await self._windows.context_of(writer.partition, writer.head)
        return {}

    async def _gather(self, writer: TaskWriter, message: Message, remembered: Json) -> Gathered:
        providers = self._agent.providers
        if not providers:
            return Gathered()
        request, records = writer.request, self._tasks.records

        def begin(provider: str, state: Json) -> Invocation:
            return Invocation(
                messages=(message,),
                user=writer.head.owner,
                session_id=request.session_id,
                task_id=request.task_id,
                request_id=request.request_id,
                model=self._agent.model,
                memory=Memory(records, writer.partition, provider, request.session_id, request.task_id),
                state=state,
            )

        return await providers.invoking(begin, remembered.get("providers") or {})

    # --- prompts ---------------------------------------------------------------------------------

    async def _whole(self, writer: TaskWriter, notes: Sequence[str], running: Sequence[Message]) -> Prompt:
        model = self._agent.model
        parts = [model.encode_system(self._agent.system_prompt)] if self._agent.system_prompt else []
        parts += await self._histories.load(writer.partition, writer.head)
        parts += [model.encode_system(note) for note in notes]
        parts += [model.encode(message) for message in running]
        return Prompt(model, parts)

    async def _viewed(
        self,
        writer: TaskWriter,
        notes: Sequence[str],
        running: Sequence[Message],
        toolbox: Toolbox,
        context: Json,
    ) -> Prompt:
        agent, partition = self._agent, writer.partition
        assert agent.view is not None
        window = await self._windows.load(partition, writer.head)
        return ViewedPrompt(
            agent.view,
            lambda: self._windows.earlier(partition, window),
            Upcoming(model=agent.model, tools=toolbox.encoded, memory=context["view"]),
            system=agent.system_prompt,
            notes=notes,
            running=running,
            number=context["turn"],
            looked=lambda: self._windows.shrink(window),
        )

    async def _remote(
        self,
        writer: TaskWriter,
        notes: Sequence[str],
        running: Sequence[Message],
        said: Sequence[Message],
        *,
        resumed: bool,
    ) -> Prompt:
        """What the service does not have yet: of a conversation that it does not keep, everything."""
        model = self._agent.model
        told = "\n\n".join(filter(None, [self._agent.system_prompt, *notes]))
        standing = [model.encode_system(told)] if told else []
        if remote_id_of(writer) is None:
            earlier = await self._histories.load(writer.partition, writer.head)
            self._histories.forget(writer.head.task_id)
            return RemotePrompt(model, standing, [*earlier, *(model.encode(each) for each in running)])
        new = _since_the_model_spoke(said) if resumed else running
        return RemotePrompt(model, standing, [model.encode(message) for message in new])

    # --- what is kept for the next turn ----------------------------------------------------------

    def extend(
        self, head: Head, first_seq: int, messages: Sequence[Message] = (), context: Json | None = None
    ) -> None:
        """The request whose entries begin at `first_seq` has left `head`; without messages, unanswered."""
        if self._agent.thread_kind == "remote":
            return
        if self._agent.view is not None:
            self._windows.extend(head, first_seq, messages, context)
        else:
            self._histories.extend(head, first_seq, messages)

    def recheck_keys(self, task_id: str) -> tuple[str, Sequence[int]]:
        """The batches to read again because what was made of them is not, and whose log they are of."""
        kept = self._windows if self._agent.view is not None else self._histories
        return kept.recheck_keys(task_id)

    def forget(self, task_id: str) -> None:
        self._histories.forget(task_id)
        self._windows.forget(task_id)


def remote_id_of(writer: TaskWriter) -> str | None:
    """What a remote conversation is continued from: by the request after its pause, else by the task."""
    return writer.request.remote_id or writer.head.remote_id


def steps_of(reports: Sequence[Report], request_id: str) -> list[Step]:
    """Reports as entries of the trace."""
    return [
        Step(
            step_id=ids.random_id(),
            request_id=request_id,
            kind=report.kind,
            name=report.name,
            started_at=report.started_at,
            duration_ms=report.duration_ms,
            input=report.input,
            output=report.output,
            usage=report.usage,
            is_error=report.is_error,
        )
        for report in reports
    ]


def _told_by_the_application(request: RequestRecord, message: Message) -> list[Message]:
    if not request.user_context:
        return []
    return [
        Message(
            message_id=ids.random_id(),
            request_id=request.request_id,
            role="user",
            created_at=message.created_at,
            items=(Item("text", context_note(request.user_context)),),
        )
    ]


def _since_the_model_spoke(said: Sequence[Message]) -> list[Message]:
    """What the model service has not been sent: results of the calls that were made before the pause."""
    spoke = max((n for n, message in enumerate(said) if message.role == "assistant"), default=-1)
    return list(said[spoke + 1 :])
