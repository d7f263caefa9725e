"""Threads whose messages the model service keeps; only the id to continue from is kept here."""

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import ClassVar, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest, ModelFailed
from tealagents.domain.models import Json, Message
from tealagents.domain.ports import RemoteConversations
from tealagents.threads.base import AgentThread, NotForkable, RemoteUnsupported, ThreadCheckpoint
from tealagents.threads.message_stores import MessageStoreFactory

log = logging.getLogger(__name__)

#: how the ids of conversations begin, which all holders of the id write to; a response (`resp_…`) can be
#: continued any number of times
CONVERSATION = "conv_"


class RemoteFields(Struct, frozen=True):
    """The fields of a remote thread's document besides its header."""

    remote_id: str | None
    beginning: tuple[Message, ...]
    inherited: frozenset[str] = frozenset()
    abandoned: tuple[str, ...] = ()
    origin_id: str | None = None


class RemoteThread(AgentThread):
    """A conversation at the model service, by the id of its last response or of the conversation itself.

    Without an id it begins with the first message. Its messages are listed by the agent
    (`Agent.list_messages`), which knows the service.
    """

    kind: ClassVar = "remote"

    def __init__(
        self,
        remote_id: str | None = None,
        *,
        service: RemoteConversations | None = None,
        beginning: Sequence[Message] = (),
        beginning_state: Mapping[str, Json] = {},
        thread_id: str | None = None,
    ) -> None:
        """`beginning`: messages from before the thread became remote, sent with the first message, and again
        after a rollback to before it. `beginning_state`: the state of context providers at that time.
        `service`: the model's client, which deletes the conversation."""
        super().__init__(thread_id=thread_id)
        if remote_id is not None and beginning:
            raise InvalidRequest("beginning", "is for a conversation that the service does not keep yet")
        given: object = remote_id
        if not isinstance(given, str | None):
            raise InvalidRequest("remote_id", f"must be the id of a conversation, not {type(given).__name__}")
        self.remote_id = remote_id
        #: the id that `rewind` goes back to; without it, the thread would lose the conversation
        self.origin_id = remote_id
        self.beginning = tuple(beginning)
        self.beginning_state = deepcopy(dict(beginning_state))
        self.context = self._beginning_context()
        self.service = service
        #: ids of the checkpoints that came from the thread that this is a copy of; it may continue from them,
        #: too
        self.inherited: frozenset[str] = frozenset()
        #: ids of responses of failed calls and requests, which no later response continues
        self.abandoned: tuple[str, ...] = ()

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """Stores nothing: the model service keeps the messages."""
        await self.create()

    @property
    def messages(self) -> Sequence[Message]:
        self._check_there()
        raise RemoteUnsupported(
            "The messages of a remote thread are at the model service: await agent.list_messages(thread)."
        )

    def continue_from(self, remote_id: str | None) -> None:
        """Sets the id that the conversation continues from, after an answer; None: unchanged."""
        self.remote_id = remote_id or self.remote_id

    def abandon(self, *remote_ids: str | None) -> None:
        """Remembers ids that the thread does not continue, such as those of a failed call, for `delete`."""
        self.abandoned += tuple(each for each in remote_ids if each is not None and each != self.remote_id)

    def fork(self, message_id: str | None = None) -> Self:
        """A thread that continues the same response. `NotForkable` for a conversation, and for a place in
        the middle: roll back to a checkpoint first, and fork there."""
        self._check_there()
        if message_id is not None:
            raise NotForkable(
                "The model service forks a conversation at its end only. Roll back to a checkpoint and fork "
                "there, or make the thread local first."
            )
        if self._is_conversation:
            raise NotForkable(
                "The model service cannot fork a conversation: all who have its id write to the same one. "
                "Make the thread local (`await agent.to_local(thread)`) and fork that."
            )
        return self.copy()

    def copy(self) -> Self:
        """The copy continues the same response independently; copies of a `conv_…` share the conversation."""
        self._check_there()
        copied = type(self)(self.remote_id, service=self.service)
        copied.origin_id, copied.beginning = self.origin_id, self.beginning
        copied._copy_from(self)
        copied.inherited = frozenset(each.checkpoint_id for each in copied.checkpoints)
        return copied

    def check_deletable(self) -> None:
        """`RemoteUnsupported` if the thread has no client that could delete the service's responses."""
        super().check_deletable()
        if self._ends() and self.service is None:
            raise RemoteUnsupported(
                "Open the thread by an agent (`agent.open_thread`) before deleting it: only the model's "
                "client can delete what the service keeps."
            )

    async def _erase(self) -> None:
        """Erases the conversation at the service: all responses that led to the current one, and to those
        that a rollback or a failed request left behind. Forks share these responses."""
        for remote_id in self._ends():
            assert self.service is not None, "checked before"
            try:
                await self.service.delete_remote(remote_id)
            except ModelFailed as error:
                # it only began, and a gateway may have named it so that the service does not know the id
                if remote_id not in self.abandoned or error.http_status not in (400, 404):
                    raise
                log.warning("the model service cannot delete what a failed call left: %s", error.detail)
        await super()._erase()
        self.remote_id, self.beginning, self.abandoned = None, (), ()

    def _ends(self) -> list[str]:
        """The ids that no other id here continues: from these, the service finds all responses of the thread.

        Checkpoints inherited from the original are left out: they belong to the original.
        """
        others = {each.parent for each in self.checkpoints} | self.inherited
        left = [each.remote_id for each in self.checkpoints if each.checkpoint_id not in others]
        return list(dict.fromkeys(filter(None, [self.remote_id, *left, *self.abandoned])))

    @property
    def _is_conversation(self) -> bool:
        return (self.remote_id or "").startswith(CONVERSATION)

    def _marked(self, checkpoint: ThreadCheckpoint) -> ThreadCheckpoint:
        return replace(checkpoint, remote_id=self.remote_id)

    def check_way_back(self) -> None:
        """`NotForkable` for a conversation, which has no earlier state."""
        super().check_way_back()
        if self._is_conversation:
            raise NotForkable("The model service keeps no earlier states of a conversation.")

    def _restore(self, checkpoint: ThreadCheckpoint) -> None:
        self.remote_id = checkpoint.remote_id if checkpoint.checkpoint_id else self.origin_id

    def _fields(self) -> Json:
        return {
            "remote_id": self.remote_id,
            "beginning": msgspec.to_builtins(self.beginning),
            "inherited": sorted(self.inherited),
            "abandoned": self.abandoned,
            "origin_id": self.origin_id,
        }

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        if stores is not None:
            log.warning(
                "a remote thread uses no message store: the model service keeps its messages (thread %s)",
                document.get("thread_id"),
            )
        fields = msgspec.convert(document, RemoteFields)
        thread = cls(fields.remote_id)
        thread.beginning, thread.inherited = fields.beginning, fields.inherited
        thread.abandoned, thread.origin_id = fields.abandoned, fields.origin_id
        return thread
