"""An agent's tools, and how one call is made safely."""

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tealagents.domain.errors import (
    NeedsAuthorization,
    NeedsOwner,
    ToolFailed,
    described,
    ends_task,
    ungrouped,
)
from tealagents.domain.json_limits import (
    DEEPEST,
    MOST_EXTREMES,
    MOST_VALUES,
    TOO_SLOW,
    measured,
    too_deep,
    too_many,
    too_slow,
)
from tealagents.domain.models import TOOL_SEPARATOR, ClientTool, Deferred, Json, ToolCall, ToolEnd, User
from tealagents.domain.ports import (
    Checking,
    Delegation,
    Finding,
    Governance,
    Model,
    PerOwner,
    Tool,
    ToolContext,
    Toolset,
    ToolSpec,
    Unlisted,
)
from tealagents.domain.texts import bounded, storable, storable_json
from tealagents.domain.tool_specs import bare
from tealagents.threads.model_faults import faults_of
from tealagents.unwinding import Overdue, within

log = logging.getLogger(__name__)

#: the errors with which a tool reports the outcome of a call
_ANSWERS = (ToolFailed, NeedsAuthorization, NeedsOwner)

#: owners whose tools are kept encoded
MAX_OWNERS = 500
#: how many tool names the error for an unknown tool lists
NAMES_LISTED = 40

#: applies governance to tools
Govern = Callable[[Sequence[Tool]], Sequence[Tool]]


class ToolOutput(Struct, frozen=True):
    """The outcome of one call; the model is sent `output`."""

    call: ToolCall
    output: str
    is_error: bool
    duration_ms: float
    #: whether it took effect is unknown
    unknown: bool = False

    @property
    def outcome(self) -> ToolEnd:
        """The outcome that later requests learn of if this one ends without an answer."""
        if self.unknown:
            return "unknown"
        return "failed" if self.is_error else "done"


class _Authorization(Struct, frozen=True):
    """What a tool's `NeedsAuthorization` says, checked: the tool may be third-party code."""

    server: str
    url: str
    scopes: list[str]


class _Measures:
    """How much JSON the values of an object hold together. Only what is new is looked through."""

    def __init__(self, values: Json) -> None:
        self._of = {key: measured(msgspec.json.encode(value)) for key, value in values.items()}
        self._values = sum(values for values, _ in self._of.values())
        self._extremes = sum(extremes for _, extremes in self._of.values())

    def put(self, key: str, encoded: bytes) -> None:
        """Counts a value, in place of the one that the key has. `ValueError` if it is one too many: an export
        of the task could not be imported."""
        new, old = measured(encoded), self._of.get(key, (0, 0))
        values, extremes = self._values + new[0] - old[0], self._extremes + new[1] - old[1]
        if values > MOST_VALUES:
            raise ValueError(f"the extra data holds more than {MOST_VALUES:,} JSON values")
        if extremes > MOST_EXTREMES:
            raise ValueError(f"the extra data {TOO_SLOW}")
        self._of[key], self._values, self._extremes = new, values, extremes


class CallContext:
    """A tool's view of the request it serves (`ports.ToolContext`)."""

    def __init__(
        self,
        *,
        session_id: str,
        task_id: str,
        request_id: str,
        owner: User,
        actor: User,
        token: str,
        headers: Mapping[str, str] | None,
        delegation: Delegation | None,
        extra_data: Json,
    ) -> None:
        """`headers` are those of the actor's that the config passes on; None if it passes on none."""
        self.session_id = session_id
        self.task_id = task_id
        self.request_id = request_id
        self.tenant_id = owner.tid
        self.user_id = owner.oid
        self.extra_data = extra_data
        self._measures = _Measures(extra_data)
        self._headers = headers
        self._owner = owner
        self._actor = actor
        self._token = token
        self._delegation = delegation

    def add_extra_data(self, key: str, value: Any) -> None:
        """Adds to the answer's `extra_data`; the value must be JSON. `ValueError` as in `storable_json`,
        and if all that the tools of a request add is too much; `TypeError` for a key that is not text."""
        if not isinstance(key, str):
            raise TypeError(f"the key of extra data must be text, not {type(key).__name__}")
        try:
            encoded = msgspec.json.encode(value)
            plain = msgspec.json.decode(encoded)
        except UnicodeEncodeError:  # a lone surrogate: `json` escapes it, and `storable_json` replaces it
            encoded = json.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
            plain = json.loads(encoded, parse_constant=lambda _: None)  # NaN becomes null, as in msgspec
        key, plain = storable(key), storable_json(plain)
        self._measures.put(key, encoded)
        self.extra_data[key] = plain

    @property
    def owner(self) -> User:
        return self._owner

    def require_owner(self) -> None:
        """`NeedsOwner` if another user runs the call: an approver never uses the owner's credentials."""
        if self._actor != self._owner:
            raise NeedsOwner("the owner's own resume is needed")

    @property
    def headers(self) -> Mapping[str, str]:
        """The owner's headers that the config passes on."""
        if self._headers is None:
            return {}
        self.require_owner()
        return self._headers

    async def user_token(self, scopes: Sequence[str] = ()) -> str:
        """A token to act for the owner downstream."""
        if isinstance(scopes, str):  # each letter would be taken for a scope
            raise ToolFailed("user_token takes a list of scopes, not a text")
        if self._delegation is None and scopes:
            raise ToolFailed(
                "this service cannot act for its users: on-behalf-of needs Entra ID and a client credential"
            )
        self.require_owner()
        if not self._token:
            raise ToolFailed(
                "the user's own token is needed, and none came with this request; with TA_AUTH=gateway none "
                "does, nor in the library"
            )
        if self._delegation is None or not scopes:
            return self._token
        return await self._delegation.token_for(self._owner, self._token, scopes)


class _RunByClient:
    """A placeholder for a tool that only the client can run: each call of it pauses the request."""

    def __init__(self, tool: ClientTool) -> None:
        self.spec = ToolSpec(
            name=tool.name,
            description=tool.description,
            parameters=tool.parameters,
            governance=Governance(requires_hitl=True),
        )

    async def call(self, context: ToolContext, arguments: Json) -> str:
        raise ToolFailed("the client runs this tool, and gave no output.")


class _Brought:
    """A placeholder for a tool that came with a request, until the request runs again and brings it."""

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec

    async def call(self, context: ToolContext, arguments: Json) -> str:
        raise ToolFailed("the tool comes with its request alone.")


def digest_of_tool(spec: ToolSpec) -> str:
    """SHA-256 of what an approval covers: the tool's names, description, parameters, governance and auth."""
    names = (spec.name, spec.function)
    said = (names, spec.description, spec.parameters, bare(spec).governance, spec.auth)
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()


class Toolbox:
    """The tools by name, and their description for the model, encoded once."""

    def __init__(
        self,
        model: Model,
        timeout_seconds: float,
        govern: Govern = list,
    ) -> None:
        """`govern` applies the agent's governance to tools that come with a request."""
        self._model = model
        self._timeout = timeout_seconds
        self._govern = govern
        self._toolsets: Sequence[Toolset] = ()
        self._tools: dict[str, Tool] = {}
        #: the tools' description, in the model client's own encoding; empty where there are none
        self.encoded = b""
        #: the tools that each toolset lists, for all users or for `_owner`
        self._lists: Sequence[Sequence[Tool]] = ()
        #: tools of one request
        self._extra: Mapping[str, Tool] = {}
        self._owner: User | None = None
        self._owned: OrderedDict[str, Toolbox] = OrderedDict()

    def of(self, owner: User) -> "Toolbox":
        """This toolbox as one owner may see it, without tools that servers have listed for other owners."""
        lists = [
            toolset.tools_of(owner) if isinstance(toolset, PerOwner) else listed
            for toolset, listed in zip(self._toolsets, self._lists, strict=True)
        ]
        known = self if self._owner == owner else self._owned.get(owner.key)
        if known is None or not all(map(is_, lists, known._lists)):
            known = self._made(lists, self._extra, owner)
            self._owned[owner.key] = known
            if len(self._owned) > MAX_OWNERS:
                self._owned.popitem(last=False)
        return known

    def current(self) -> "Toolbox":
        """This toolbox with its owner's tools as they are listed now."""
        return self if self._owner is None else self.of(self._owner)

    def with_tools(self, tools: Sequence[Tool]) -> "Toolbox":
        """This toolbox with further tools for one request, which are governed like all others."""
        extra = {tool.spec.name: tool for tool in self._govern(tools)}
        return self._made(self._lists, {**extra, **self._extra}, self._owner)

    def with_brought(self, specs: Sequence[ToolSpec]) -> "Toolbox":
        """This toolbox with placeholders for the tools that a paused request brought, governed as now."""
        return self.with_tools([_Brought(spec) for spec in specs]) if specs else self

    def with_client_tools(self, tools: Sequence[ClientTool]) -> "Toolbox":
        """This toolbox with tools that one request's client runs; they never hide the agent's own."""
        offered = {tool.name: _RunByClient(tool) for tool in tools}
        return self._made(self._lists, {**offered, **self._extra}, self._owner)

    def _made(
        self, lists: Sequence[Sequence[Tool]], extra: Mapping[str, Tool], owner: User | None
    ) -> "Toolbox":
        made = Toolbox(self._model, self._timeout, self._govern)
        made._toolsets, made._owner, made._extra = self._toolsets, owner, extra
        if extra is self._extra and all(map(is_, lists, self._lists)):
            made._lists, made._tools, made.encoded = self._lists, self._tools, self.encoded
        else:
            made._take(lists)
        return made

    def by_client(self, name: str) -> bool:
        """Whether the client of the request runs this tool."""
        return isinstance(self._tools.get(name), _RunByClient)

    def load(self, toolsets: Sequence[Toolset]) -> None:
        """Takes the tools of opened toolsets."""
        self._toolsets = toolsets
        self.reload()

    def reload(self) -> None:
        """Asks the toolsets again after one of them has changed its tools. Calls under way continue."""
        self._take([toolset.tools() for toolset in self._toolsets])
        self._owned.clear()

    def _take(self, lists: Sequence[Sequence[Tool]]) -> None:
        tools = {**self._extra, **{tool.spec.name: tool for listed in lists for tool in listed}}
        with faults_of(self._model):
            encoded = self._model.encode_tools([tool.spec for tool in tools.values()])
        self._lists, self._tools, self.encoded = lists, tools, encoded

    def find(self, name: str) -> Tool | None:
        """The tool of this name, even if its server lists it only for users who have consented."""
        found = self._tools.get(name)
        if found is not None:
            return found
        for toolset in self._toolsets:
            if isinstance(toolset, Finding) and (hidden := toolset.find(name)) is not None:
                return hidden
        return None

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def tools(self) -> list[Tool]:
        return list(self._tools.values())

    def plugin_of(self, name: str) -> str:
        """The plugin of a tool; empty if it is the part of the name before the first hyphen."""
        tool = self.find(name)
        plugin = tool.spec.plugin if tool is not None else ""
        return plugin if TOOL_SEPARATOR in plugin and name.startswith(plugin + TOOL_SEPARATOR) else ""

    def governed(self, call: ToolCall) -> bool:
        """Whether the call has to wait for an approval, or for the client that runs it.

        A call with invalid arguments does not wait: its result tells the model why it failed.
        """
        tool = self.find(call.tool)
        if tool is None or not tool.spec.governance.requires_hitl:
            return False
        return isinstance(arguments_of(call), dict)

    def pinned(self, call: ToolCall) -> ToolCall:
        """The call as a pause shows it, with the digest of its tool: it runs only if that is unchanged."""
        tool = self.find(call.tool)
        if tool is None or call.by_client or isinstance(tool, Unlisted):
            return replace(call, pinned="")
        return replace(call, pinned=digest_of_tool(tool.spec))

    def as_shown(self, call: ToolCall) -> ToolSpec | None:
        """The tool of a call that was shown for approval; None if it has changed since, or is unknown."""
        tool = self.find(call.tool)
        same = tool is not None and call.pinned and digest_of_tool(tool.spec) == call.pinned
        return tool.spec if tool is not None and same else None

    def brought_for(self, calls: Iterable[ToolCall]) -> tuple[ToolSpec, ...]:
        """The specs of these calls' tools that came with the request, except those that its client runs."""
        names = dict.fromkeys(call.tool for call in calls if not call.by_client)
        extra = {name: self._extra[name] for name in names if name in self._extra}
        return tuple(bare(tool.spec) for name, tool in extra.items() if self._tools[name] is tool)

    def check(self, name: str, arguments: Json) -> None:
        """`ToolFailed` if the tool can tell before a call that it would refuse these arguments."""
        tool = self.find(name)
        if not isinstance(tool, Checking):
            return
        try:
            with ungrouped():
                tool.check(arguments)
        except ToolFailed:
            raise
        except BaseException as error:
            if ends_task(error):
                raise
            log.exception("tool %s raised", name)
            raise ToolFailed(described(error)) from error

    async def call(self, call: ToolCall, context: CallContext) -> ToolOutput | Deferred:
        """Makes one call. Whatever goes wrong in the tool is reported to the model and never raised."""
        started = time.perf_counter()
        is_error = unknown = False
        try:
            tool = await self._tool_of(call, context)
            if tool is not None and call.pinned not in ("", digest_of_tool(tool.spec)):
                return Deferred(call, None, changed=True)
            output = await self._attempt(tool, call, context)
        except NeedsAuthorization as need:
            where = {"server": need.server, "url": need.url, "scopes": need.scopes}
            try:
                where = msgspec.to_builtins(msgspec.convert(where, _Authorization))
            except msgspec.ValidationError as wrong:
                output, is_error = f"Error: the authorization that it needs is wrong: {wrong}.", True
                unknown = call.begun or need.begun
            else:
                return Deferred(replace(call, begun=call.begun or need.begun), where)
        except NeedsOwner as need:
            return Deferred(replace(call, begun=call.begun or need.begun), None)
        except ToolFailed as failure:
            output, is_error, unknown = bounded(f"Error: {failure}"), True, failure.unknown
        duration_ms = round((time.perf_counter() - started) * 1000, 3)
        return ToolOutput(call, storable(output), is_error, duration_ms, unknown)

    async def _tool_of(self, call: ToolCall, context: CallContext) -> Tool | None:
        """The tool of a call. For an approved call, an `Unlisted` tool is listed first, so that it can be
        compared with the one that was shown."""
        tool = self.find(call.tool)
        if call.pinned and isinstance(tool, Unlisted):
            try:
                await within(self._limit(tool), partial(tool.list_for, context), _ANSWERS)
            except _ANSWERS:
                raise
            except BaseException as error:  # as with a tool's own error, only this call fails
                if ends_task(error):
                    raise
                log.warning("the server of %s lists no tools", call.tool, exc_info=error)
                raise ToolFailed(f"the server of {call.tool} lists no tools. Nothing was done.") from error
            return self.current().find(call.tool)
        return tool

    def _limit(self, tool: Tool) -> float:
        """Seconds until a call is given up. By then it may have been sent: while it waits for a session or a
        token, the tool itself gives up earlier, and reports that nothing was sent."""
        return (tool.spec.timeout or self._timeout) + tool.spec.waits

    async def _attempt(self, tool: Tool | None, call: ToolCall, context: CallContext) -> str:
        if tool is None:
            listed = ", ".join(sorted(self._tools)[:NAMES_LISTED]) or "none"
            raise ToolFailed(f"there is no tool {call.tool!r}. The tools are: {listed}.")
        arguments = arguments_of(call)
        if not isinstance(arguments, dict):
            raise ToolFailed(f"the arguments are not a JSON object: {arguments}. Call the tool again.")
        seconds = self._limit(tool)
        try:
            return await within(seconds, partial(_called, tool, context, arguments), _ANSWERS)
        except _ANSWERS:
            raise
        # a tool is third-party code: whatever it raises, even a Rust panic, becomes a result for the model
        except BaseException as error:
            if ends_task(error):
                raise
            if isinstance(error, asyncio.CancelledError):
                raise ToolFailed(
                    "it was canceled from within; whether it took effect is unknown.", unknown=True
                ) from None
            if isinstance(error, SystemExit):
                raise ToolFailed(f"it tried to end the process (exit {error.code}).", unknown=True) from None
            if isinstance(error, Overdue):
                raise ToolFailed(
                    f"it gave no result within {seconds:g} seconds; whether it took effect is unknown.",
                    unknown=True,
                ) from error
            log.exception("tool %s raised", call.tool)
            raise ToolFailed(described(error)) from error


async def _called(tool: Tool, context: CallContext, arguments: Json) -> str:
    return _text(tool.spec.name, await tool.call(context, arguments))


def _text(name: str, output: object) -> str:
    """A tool's output; `ToolFailed` if it is not text, which a third-party tool may return."""
    if not isinstance(output, str):
        raise ToolFailed(f"{name} has run, but gave back {type(output).__name__} instead of text.")
    return output


def arguments_of(call: ToolCall) -> Json | str:
    """The parsed arguments, or a text that says why they are invalid."""
    given = (call.arguments or "{}").encode()
    if too_many(given, MOST_VALUES):
        return f"holds more than {MOST_VALUES:,} JSON values"
    if too_slow(given):
        return TOO_SLOW
    try:
        parsed = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)
    if too_deep(parsed):
        return f"nested deeper than {DEEPEST} levels"
    return parsed if isinstance(parsed, dict) else f"got {type(parsed).__name__}"
