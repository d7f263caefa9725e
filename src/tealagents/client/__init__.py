"""The typed client of a tealagents service: `AsyncClient`, and its synchronous twin `Client`.

It speaks the service's HTTP contract and shares no code with the service: a program that only calls agents
can take it from here.

==============  ==================================================================================
`aio`           the asynchronous driver: client, streams, lists. It does all the I/O and decides nothing
`sync`          the synchronous one, generated from it (`scripts/generate_sync_client.py`)
`backends`      in what the two differ: HTTP clients, tokens, sleep, closing
`operations`    what a client can do, each operation as a flow
`rules`         what an answer means, when to repeat a call, how far a stream has been read
`calls`         each route as the HTTP call that reaches it
`wire`          effects and outcomes: what rules ask of drivers, and what drivers return
`retry`         how often, and how soon, to repeat
`sse`           an incremental parser of event streams
`items`         what is sent; `documents`, `events`, `errors`: what comes back
==============  ==================================================================================

Everything a caller needs is imported from here. The package imports nothing of the project.
"""

from tealagents.client.aio import AsyncClient, AsyncEventStream, AsyncItems
from tealagents.client.backends import AsyncToken, Token
from tealagents.client.calls import DecisionOptions, MessageOptions, TaskChanges
from tealagents.client.documents import (
    Accepted,
    Answer,
    Approval,
    AuditEntry,
    Authorization,
    Checkpoint,
    Health,
    Me,
    Message,
    MessageCall,
    PendingCall,
    PromptPart,
    RequestDocument,
    Session,
    Step,
    Task,
    Usage,
)
from tealagents.client.errors import (
    AlreadyDecided,
    AlreadyExists,
    ApprovalExpired,
    ApprovalPending,
    AuthUnavailable,
    ClientError,
    ConnectionLost,
    CorruptState,
    Draining,
    IdempotencyKeyReused,
    InsufficientScope,
    InternalError,
    Interrupted,
    InvalidRequest,
    MethodNotAllowed,
    ModelError,
    ModelTimeout,
    NotFound,
    NotOwner,
    Overloaded,
    PersistenceUnavailable,
    ProblemError,
    RemoteThreadLost,
    RequestCanceled,
    RequestInProgress,
    RequestTimeout,
    SessionMismatch,
    StillRunning,
    TaskBusy,
    TooLarge,
    ToolRoundsExceeded,
    Unauthenticated,
    UnexpectedAnswer,
)
from tealagents.client.events import (
    ApprovalRequired,
    Delta,
    Failed,
    Final,
    Request,
    StreamEvent,
    ToolCall,
    ToolResult,
)
from tealagents.client.items import Action, Content, Decision, Image, Text
from tealagents.client.retry import NO_RETRY, Retry
from tealagents.client.sync import Client, EventStream, Items
from tealagents.client.wire import Timeouts

__all__ = [
    "NO_RETRY",
    "Accepted",
    "Action",
    "AlreadyDecided",
    "AlreadyExists",
    "Answer",
    "Approval",
    "ApprovalExpired",
    "ApprovalPending",
    "ApprovalRequired",
    "AsyncClient",
    "AsyncEventStream",
    "AsyncItems",
    "AsyncToken",
    "AuditEntry",
    "AuthUnavailable",
    "Authorization",
    "Checkpoint",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Content",
    "CorruptState",
    "Decision",
    "DecisionOptions",
    "Delta",
    "Draining",
    "EventStream",
    "Failed",
    "Final",
    "Health",
    "IdempotencyKeyReused",
    "Image",
    "InsufficientScope",
    "InternalError",
    "Interrupted",
    "InvalidRequest",
    "Items",
    "Me",
    "Message",
    "MessageCall",
    "MessageOptions",
    "MethodNotAllowed",
    "ModelError",
    "ModelTimeout",
    "NotFound",
    "NotOwner",
    "Overloaded",
    "PendingCall",
    "PersistenceUnavailable",
    "ProblemError",
    "PromptPart",
    "RemoteThreadLost",
    "Request",
    "RequestCanceled",
    "RequestDocument",
    "RequestInProgress",
    "RequestTimeout",
    "Retry",
    "Session",
    "SessionMismatch",
    "Step",
    "StillRunning",
    "StreamEvent",
    "Task",
    "TaskBusy",
    "TaskChanges",
    "Text",
    "Timeouts",
    "Token",
    "TooLarge",
    "ToolCall",
    "ToolResult",
    "ToolRoundsExceeded",
    "Unauthenticated",
    "UnexpectedAnswer",
    "Usage",
]
