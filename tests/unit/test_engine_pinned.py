"""An approval is given for a tool as it was shown: what has changed since then is asked about again."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
from engine_setup import ADA, Function, Process, Scripted, Tools, calls, noting, process, says
from msgspec.structs import replace
from oauth_setup import CALLBACK, Provider, SecretStore, protected, visited
from tools_setup import FIXTURES

from tealagents.domain.errors import CorruptState, NeedsAuthorization, ToolFailed
from tealagents.domain.ids import operation_id
from tealagents.domain.models import Approval, Deferred, Json, RequestRecord, ToolCall, User
from tealagents.domain.ports import Commit, Governance, Put, Tool, ToolContext, ToolSpec
from tealagents.engine.approvals import Command
from tealagents.engine.toolbox import CallContext, Toolbox, ToolOutput, digest_of_tool
from tealagents.state import codec, keys
from tealagents.stores.memory import MemoryStore
from tealagents.tools.catalogue import GovernedToolset
from tealagents.tools.mcp import MCPServer
from tealagents.tools.oauth import Consents
from tealagents.tools.options import MCPServerOptions


async def approval_of(here: Process, request: RequestRecord) -> Approval:
    found = await here.records.get(here.partition(), keys.approval(request.approvals[-1]), Approval)
    assert found is not None
    return found.value


async def shown_for(here: Process, request: RequestRecord) -> list[str]:
    """What the calls of the request's pause are bound to."""
    return [call.pinned for call in (await approval_of(here, request)).calls]


async def approve(here: Process, request: RequestRecord) -> RequestRecord:
    command = Command(action="approve", approval_id=request.approvals[-1])
    sent = await here.approvals.resume(ADA, request.request_id, command, streamed=False)
    return await here.service.outcome(sent)


def redescribed(tool: Function) -> None:
    tool.spec = replace(tool.spec, description="Delete everything.")


def reshaped(tool: Function) -> None:
    tool.spec = replace(tool.spec, parameters={"type": "object", "properties": {"all": {"type": "boolean"}}})


def loosened(tool: Function) -> None:
    tool.spec = replace(tool.spec, governance=Governance())


def recosted(tool: Function) -> None:
    tool.spec = replace(tool.spec, governance=replace(tool.spec.governance, cost="high"))


@pytest.mark.parametrize("changes", [redescribed, reshaped, loosened, recosted])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_tool_that_changed_after_it_was_shown_is_asked_about_again(
    changes: object, restarted: bool
) -> None:
    """Whatever changed of it, in this process or in the next: nothing has run, the new pause says why, and
    approving it runs the tool as it is now, once. covers: HITL-1"""
    ran: list[Json] = []
    tool, store = noting(ran, governed=True), MemoryStore()
    model = Scripted(calls(ToolCall("c1", "Shell-delete", '{"path": "/x"}')), says("Done."))
    async with store, process(store, model, tool) as here:
        paused = await here.ask()
        shown = await approval_of(here, paused)
        assert [call.pinned for call in shown.calls] == [digest_of_tool(tool.spec)]
        toolbox = here.service.agent.toolbox
        assert toolbox.as_shown(shown.calls[0]) == tool.spec
        if not restarted:
            changes(tool)  # type: ignore[operator]
            assert toolbox.as_shown(shown.calls[0]) is None
            again = await approve(here, paused)
            await check(here, again, ran)
    if restarted:
        changes(tool)  # type: ignore[operator]
        async with store, process(store, model, tool) as here:
            await check(here, await approve(here, paused), ran)


async def check(here: Process, again: RequestRecord, ran: list[Json]) -> None:
    assert (again.status, ran) == ("Paused", [])
    approval = await approval_of(here, again)
    assert approval.message == (
        "Shell-delete has changed since it was approved. Approve again before Shell-delete can run."
    )
    assert (approval.status, approval.awaits_owner) == ("pending", False)
    done = await approve(here, again)
    assert (done.status, ran) == ("Completed", [{"path": "/x"}])


async def test_a_tool_that_stayed_as_it_was_runs() -> None:
    """Others may have changed meanwhile."""
    ran: list[Json] = []
    tool, other = noting(ran, governed=True), noting([], "Shell-list")
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("Done."))
    async with process(None, model, tool, other) as here:
        paused = await here.ask()
        redescribed(other)
        assert (await approve(here, paused)).status == "Completed"
        assert ran == [{}]


def test_the_digest_is_of_what_is_approved() -> None:
    """The names, the description, the arguments, the governance and the authorization: in any order."""
    spec = ToolSpec(
        name="A-b", description="d", parameters={"a": 1, "b": {"c": 2, "d": 3}}, governance=Governance()
    )
    same = replace(spec, parameters={"b": {"d": 3, "c": 2}, "a": 1}, timeout=5)
    others = [
        replace(spec, name="A-c"),
        replace(spec, description="e"),
        replace(spec, parameters={"a": 2}),
        replace(spec, governance=Governance(requires_hitl=True)),
        replace(spec, governance=Governance(data_sensitivity="sensitive")),
        replace(spec, auth={"auth_server": "https://x"}),
        replace(spec, function="b"),
    ]
    assert digest_of_tool(spec) == digest_of_tool(same)
    assert len({digest_of_tool(one) for one in (spec, *others)}) == 1 + len(others)


# --- tools that a server lists for its users -----------------------------------------------------


def context() -> CallContext:
    user = User("contoso", "ada")
    return CallContext(
        session_id="s",
        task_id="t",
        request_id="r",
        owner=user,
        actor=user,
        token="",
        headers=None,
        delegation=None,
        extra_data={},
    )


async def test_a_listing_that_was_lost_is_asked_for_before_an_approved_call() -> None:
    """After a restart the server lists its tools again, and the call runs where the tool is the same."""
    provider, secrets = Provider(), SecretStore()
    with protected(provider, per_user=True) as url:
        options = MCPServerOptions(name="private", url=url)
        consents = Consents(CALLBACK, secret_store=secrets)
        call = ToolCall("c1", "private-notes", "{}")
        async with MCPServer(options, consents) as server:
            box = boxed(GovernedToolset(server, None, consents))
            assert box.pinned(call).pinned == ""
            with pytest.raises(NeedsAuthorization) as asked:
                await server.connect(context())
            brought = await visited(provider, "Ada", asked.value.url)
            await consents.complete(brought["state"], brought["code"], iss=brought.get("iss"))
            await server.connect(context())
            pinned = box.of(User("contoso", "ada")).pinned(call)
            assert pinned.pinned != ""
        consents = Consents(CALLBACK, secret_store=secrets)
        async with MCPServer(options, consents) as server:
            box = boxed(GovernedToolset(server, None, consents)).of(User("contoso", "ada"))
            result = await box.call(pinned, context())
            assert isinstance(result, ToolOutput)
            assert (result.output, result.is_error) == ("the notes of Ada", False)
            other = replace(pinned, pinned="0" * 64)
            assert await box.current().call(other, context()) == Deferred(other, None, changed=True)


async def test_a_tool_that_a_server_has_renamed_is_another_one(tmp_path: Path) -> None:
    """Also where the model knows both by one name: an approved call of `get.item` never runs `get/item`."""
    arguments = [str(FIXTURES / "odd_server.py"), str(tmp_path), "careless"]
    options = MCPServerOptions(name="odd", command=sys.executable, args=tuple(arguments))
    notified, call = asyncio.Event(), ToolCall("c1", "odd-get_item", "{}")
    async with MCPServer(options, changed=notified.set) as server:
        box = boxed(GovernedToolset(server, None, None))
        shown, earlier = box.pinned(call), box.find(call.tool)
        assert earlier is not None
        await server.call(context(), "odd-rename", {})
        await asyncio.wait_for(notified.wait(), 60)
        box.reload()
        assert await box.call(shown, context()) == Deferred(shown, None, changed=True)
        # a server may list other tools while an approved call waits for its session
        with pytest.raises(ToolFailed, match="There is no tool 'odd-get_item'"):
            await earlier.call(context(), {})
        assert isinstance(await box.call(box.pinned(call), context()), ToolOutput)
    assert (tmp_path / "calls").read_text() == "rename\nget/item\n"


class Relisting:
    """The tools of a server that lists them for each user, and has listed `tool` for the present one."""

    def __init__(self, tool: Function) -> None:
        self.tool = tool
        self._listed: Sequence[Tool] = ()

    def serve(self, tool: Function) -> None:
        """The server lists another tool of the same name."""
        self.tool, self._listed = tool, (tool,)

    def tools(self) -> Sequence[Tool]:
        return ()

    def tools_of(self, owner: User) -> Sequence[Tool]:
        return self._listed

    def find(self, name: str) -> Tool | None:
        return StandIn(self) if name == self.tool.spec.name else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


class StandIn(Function):
    """Stands for the tool while it is not listed."""

    def __init__(self, server: Relisting) -> None:
        super().__init__(server.tool.spec.name, lambda _: "", governed=True)
        self._server = server

    async def list_for(self, context: ToolContext) -> None:
        self._server.serve(self._server.tool)


async def test_a_tool_that_was_listed_only_after_its_approval_is_shown_as_it_is_now() -> None:
    """A pause for a tool that changed over a restart holds for that tool alone: changed once more, it is
    asked about again. covers: HITL-1"""
    ran: list[Json] = []
    store = MemoryStore()
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("Done."))
    first, second, third = (noting(ran, governed=True) for _ in range(3))
    redescribed(second)
    reshaped(third)
    async with store, process(store, model) as here:
        server = Relisting(first)
        server.serve(first)
        here.service.agent.toolbox.load([server])
        request = await here.ask()
    async with store, process(store, model) as here:
        server = Relisting(second)
        here.service.agent.toolbox.load([server])
        request = await approve(here, request)
        assert await shown_for(here, request) == [digest_of_tool(second.spec)]
        server.serve(third)
        request = await approve(here, request)
        assert await shown_for(here, request) == [digest_of_tool(third.spec)]
        assert ran == []
        assert (await approve(here, request)).status == "Completed"
        assert ran == [{}]


async def test_the_trace_counts_the_tools_that_the_call_was_sent() -> None:
    """A tool has made a server list another one in the midst of the turn."""
    server = Relisting(noting([]))

    def looks(_: Json) -> str:
        server.serve(server.tool)
        return "There is more."

    model = Scripted(calls(ToolCall("c1", "Shell-look", "{}")), says("Done."))
    async with process(None, model) as here:
        here.service.agent.toolbox.load([Tools(Function("Shell-look", looks)), server])
        request = await here.ask()
        head = (await here.tasks.head(here.partition(), request.task_id)).value
        steps, _ = await here.tasks.history.steps(here.partition(), request.task_id, head.tail_seq, limit=50)
        assert [step.input and step.input["tools"] for step in steps if step.kind == "model"] == [1, 2]


class Broken(StandIn):
    """The same for a server whose listing breaks the rules."""

    async def list_for(self, context: ToolContext) -> None:
        raise RuntimeError("no such field")


async def test_a_server_that_cannot_list_fails_its_own_call_alone() -> None:
    """The model reads that the call was not made; the other approved call of its round runs, and the request
    completes. covers: HITL-1"""
    ran: list[Json] = []
    asked_for = (ToolCall("c1", "Shell-delete", "{}"), ToolCall("c2", "Shell-list", "{}"))
    model = Scripted(calls(*asked_for), says("I see."))
    listed, other = noting(ran, governed=True), noting(ran, "Shell-list", governed=True)
    async with process(None, model, listed, other) as here:
        request = await here.ask()
        here.service.agent.toolbox.load([Tools(Broken(Relisting(listed)), other)])
        assert (await approve(here, request)).status == "Completed"
        assert ran == [{}]
        assert model.calls[-1].prompt[-2:] == (
            b"tool: Error: the server of Shell-delete lists no tools. Nothing was done.",
            b"tool: ok",
        )


class Asking(StandIn):
    """The same for a server that asks who the user is before it lists, among others at once."""

    async def list_for(self, context: ToolContext) -> None:
        need = NeedsAuthorization("shell", "https://shell.example/authorize")
        raise ExceptionGroup("two tasks", [ConnectionError("reset"), need])


async def test_a_server_that_asks_in_a_group_who_the_user_is_gets_its_answer() -> None:
    """The request pauses for the authorization; the call does not fail. covers: HITL-1"""
    ran: list[Json] = []
    model = Scripted(calls(ToolCall("c1", "Shell-delete", "{}")), says("Done."))
    listed = noting(ran, governed=True)
    async with process(None, model, listed) as here:
        request = await here.ask()
        here.service.agent.toolbox.load([Tools(Asking(Relisting(listed)))])
        again = await approve(here, request)
        assert again.status == "Paused"
        asked = await approval_of(here, again)
        assert [authorization["server"] for authorization in asked.authorizations] == ["shell"]


def boxed(*toolsets: GovernedToolset) -> Toolbox:
    box = Toolbox(Scripted(), 30)
    box.load(toolsets)
    return box


async def test_an_approval_whose_calls_were_changed_at_the_store_runs_nothing() -> None:
    """Its record is whole, and holds other calls than those that were shown. covers: HITL-1"""
    ran: list[Json] = []
    model = Scripted(calls(ToolCall("c1", "Shell-delete", '{"path": "/tmp/x"}')), says("done"))
    async with process(None, model, noting(ran, governed=True)) as here:
        paused = await here.ask()
        approval, key = await approval_of(here, paused), keys.approval(paused.approvals[-1])
        (call,) = approval.calls
        changed = replace(approval, calls=(replace(call, arguments='{"path": "/"}'),))
        put = {key: Put(codec.seal(here.partition(), key, changed))}
        await here.store.commit(here.partition(), Commit(operation=operation_id(), put=put))
        assert await approval_of(here, paused) == changed
        with pytest.raises(CorruptState, match="other calls than were shown"):
            await approve(here, paused)
        assert ran == []
        assert (await here.request(paused.request_id)).status == "Paused"
