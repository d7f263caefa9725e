"""Threads whose messages the model service keeps: here is only the id it is continued by."""

import logging
from collections.abc import Sequence
from typing import ClassVar, Self

import msgspec
from msgspec.structs import replace

from tealagents.domain.errors import InvalidRequest
from tealagents.domain.models import Json, Message
from tealagents.domain.ports import RemoteConversations
from tealagents.threads.base import AgentThread, Checkpoint, NotForkable, RemoteUnsupported
from tealagents.threads.message_stores import MessageStoreFactory

log = logging.getLogger(__name__)

#: how the ids of conversations begin, to which whoever holds the id writes; a response (`resp_…`) can be
#: continued any number of times
CONVERSATION = "conv_"


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
        thread_id: str | None = None,
    ) -> None:
        """`beginning` is what was said before it became remote: sent with the first message, and again where
        the thread goes back to before that. `service` is the model's client, by which it is deleted."""
        super().__init__(thread_id=thread_id)
        if remote_id is not None and beginning:
            raise InvalidRequest("beginning", "is for a conversation that the service does not keep yet")
        self.remote_id = remote_id
        self.beginning = tuple(beginning)
        self.service = service

    async def on_new_messages(self, messages: Sequence[Message]) -> None:
        """The service has kept them; here is nothing to do."""
        await self.create()

    @property
    def messages(self) -> Sequence[Message]:
        self._check_there()
        raise RemoteUnsupported(
            "The messages of a remote thread are at the model service: await agent.list_messages(thread)."
        )

    def continued(self, remote_id: str | None) -> None:
        """The service has answered; the conversation goes on from there."""
        self.remote_id = remote_id or self.remote_id

    def fork(self, message_id: str | None = None) -> Self:
        """A response is shared by all that continue it. `NotForkable` for a conversation, and for a place in
        the middle: go back to a checkpoint first, and fork there."""
        self._check_there()
        if message_id is not None:
            raise NotForkable(
                "The model service forks a conversation at its end only. Roll back to a checkpoint and fork "
                "there, or make the thread local first."
            )
        if (self.remote_id or "").startswith(CONVERSATION):
            raise NotForkable(
                "The model service cannot fork a conversation: whoever holds its id writes to the same one. "
                "Make the thread local (`await agent.to_local(thread)`) and fork that."
            )
        return self.copy()

    def copy(self) -> Self:
        """Both continue what there is now, each for itself; two copies of a conversation share it."""
        self._check_there()
        copied = type(self)(self.remote_id, service=self.service)
        copied.beginning = self.beginning
        copied._like(self)
        return copied

    async def delete(self) -> None:
        """Erases the conversation at the service: all responses that led to it. Forks share them."""
        self._check_free()
        if self.remote_id is not None:
            if self.service is None:
                raise RemoteUnsupported(
                    "Open the thread by an agent (`agent.open_thread`) before deleting it: only the model's "
                    "client can delete what the service keeps."
                )
            await self.service.delete_remote(self.remote_id)
        await super().delete()
        self.remote_id = None

    def _marked(self, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, remote_id=self.remote_id)

    def check_way_back(self) -> None:
        """`NotForkable` for a conversation, which has no earlier state."""
        super().check_way_back()
        if (self.remote_id or "").startswith(CONVERSATION):
            raise NotForkable("The model service keeps no earlier states of a conversation.")

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Back to an earlier response."""
        self.remote_id = checkpoint.remote_id

    def _parts(self) -> Json:
        return {"remote_id": self.remote_id, "beginning": msgspec.to_builtins(self.beginning)}

    @classmethod
    def _opened(cls, document: Json, stores: MessageStoreFactory | None) -> Self:
        if stores is not None:
            log.warning(
                "a remote thread uses no message store: the model service keeps its messages (thread %s)",
                document.get("thread_id"),
            )
        beginning = msgspec.convert(document["beginning"], tuple[Message, ...])
        thread = cls(msgspec.convert(document["remote_id"], str | None))
        thread.beginning = beginning
        return thread
