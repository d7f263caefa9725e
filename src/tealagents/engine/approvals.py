"""Decisions on pauses: finds the pause, checks who may decide it, and carries the decision out once."""

from msgspec import Struct

from tealagents.domain.errors import (
    AlreadyDecided,
    ApprovalPending,
    CorruptState,
    InvalidRequest,
    NotFound,
    RequestCanceled,
    TealError,
    ToolFailed,
)
from tealagents.domain.models import (
    Action,
    Approval,
    Caller,
    Decision,
    Json,
    RequestRecord,
    RequestSetup,
    ToolCall,
    User,
)
from tealagents.engine.loop import Resumption
from tealagents.engine.resuming import tool_messages
from tealagents.engine.service import Service, Submitted
from tealagents.engine.toolbox import arguments_of
from tealagents.state import keys
from tealagents.state.audit_chain import canonical
from tealagents.state.decisions import (
    REQUEST_GONE,
    approved_calls,
    check_same_decision,
    digest_of,
    resume,
    with_decisions,
)
from tealagents.state.owner_directory import anothers
from tealagents.state.records import Stored
from tealagents.state.task_writer import TaskWriter

#: how often a decision is tried; a concurrent one has normally been stored by the second attempt
ATTEMPTS = 5


class CallDecision(Struct, frozen=True):
    """A client's decision on one call."""

    id: str
    action: Action | None = None
    arguments: Json | None = None
    #: of a call that the client has run: the result for the model
    output: str | None = None
    is_error: bool = False
    #: why; None: the command's `reason`
    reason: str | None = None


class Command(Struct, frozen=True, kw_only=True):
    """A client's command to resume a request."""

    action: Action | None = None
    reason: str | None = None
    decisions: tuple[CallDecision, ...] = ()
    approval_id: str | None = None
    #: the request's setup from here on; None: unchanged
    setup: RequestSetup | None = None


class Approvals:
    """Decides pauses and runs the approved calls."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks = service.tasks
        self._records = service.records

    async def resume(self, caller: Caller, request_id: str, command: Command, *, streamed: bool) -> Submitted:
        """Carries a decision out; if the same decision was made before, returns the request as it is now.

        Raises `NotOwner`, `InvalidRequest`, `ApprovalPending`, `AlreadyDecided`, `ApprovalExpired`,
        `RequestCanceled`, `NotFound`, `Overloaded`, `Draining`, `CorruptState`.
        """
        partition = await self._tasks.directory.locate(caller, keys.request, request_id, deciding=True)
        for _ in range(ATTEMPTS):
            record = (await self._tasks.request(partition, request_id)).value
            if not record.approvals and partition != self._records.partition(caller.user):
                raise anothers(keys.request, request_id)
            stored = await self._pause_meant(partition, record, command)
            if stored.value.is_closed_to(caller.user):
                raise anothers(keys.request, request_id)
            wanted = self._wanted(stored.value, caller.user, command)
            if stored.value.status != "pending":
                check_same_decision(stored.value, wanted)
                # it may have been decided since the record was read
                record = (await self._tasks.request(partition, request_id)).value
                return Submitted(record, partition, replayed=True, after=stored.value.event_id)
            if stored.value.awaits_another(caller.user):
                _approved_already(stored.value, wanted)
                return Submitted(record, partition, replayed=True, after=stored.value.event_id)
            writer = await self._take(caller, partition, stored, wanted, command.setup)
            if writer is not None:
                self._run(caller, writer, wanted, streamed=streamed)
                return Submitted(writer.request, partition, after=stored.value.event_id)
        key = keys.approval(stored.value.approval_id)
        raise CorruptState(key, "is pending, but its task does not wait for it").with_ids(**_ids(record))

    async def _take(
        self,
        caller: Caller,
        partition: str,
        stored: Stored[Approval],
        wanted: Approval,
        setup: RequestSetup | None,
    ) -> TaskWriter | None:
        """Stores the decision and takes the task, within the limits; None if another writer was quicker."""
        approval = stored.value
        if digest_of(approval.calls) != approval.digest:
            key = keys.approval(approval.approval_id)
            raise CorruptState(key, "holds other calls than were shown", task_id=approval.task_id)
        user = caller.user.key
        self._service.admission.enter(user)
        writer: TaskWriter | None = None
        try:
            writer = await resume(self._tasks, partition, stored, wanted, caller.user, setup)
        finally:
            if writer is None:
                self._service.admission.leave(user)
        return writer

    # --- which pause -----------------------------------------------------------------------------

    async def _pause_meant(self, partition: str, record: RequestRecord, command: Command) -> Stored[Approval]:
        """The pause that a decision is about.

        It is found by its id, or else by the calls that the decision names; a bare action means the
        request's first pause.
        """
        if not record.approvals:
            if record.status == "Canceled":
                raise RequestCanceled(REQUEST_GONE).with_ids(**_ids(record))
            if record.imported_pauses:
                decided = "The request is a copy; its pauses were decided before the copy was made."
                raise AlreadyDecided(decided).with_ids(**_ids(record))
            raise NotFound(
                f"The request {record.request_id} is not waiting for a decision. Check the id."
            ).with_ids(**_ids(record))
        if command.approval_id is not None:
            if command.approval_id not in record.approvals:
                raise NotFound(
                    f"The request {record.request_id} has no pause {command.approval_id}. Check the ids."
                ).with_ids(**_ids(record))
            return await self._approval(partition, record, command.approval_id)
        if command.decisions:
            return await self._by_calls(partition, record, command)
        if record.status == "Paused" and len(record.approvals) > 1:
            raise _paused_again(record)
        return await self._approval(partition, record, record.approvals[0])

    async def _by_calls(self, partition: str, record: RequestRecord, command: Command) -> Stored[Approval]:
        """The pause that shows the calls that the decision names.

        A call that had to wait for its owner is shown in two pauses. The calls alone then do not tell a
        decision on the second pause from a repeated decision on the first.
        """
        named = {decision.id for decision in command.decisions}
        approvals = [await self._approval(partition, record, each) for each in record.approvals]
        showing = [found for found in approvals if named <= {call.id for call in found.value.calls}]
        if len(showing) > 1 and record.status == "Paused":
            raise _paused_again(record)
        return showing[0] if showing else approvals[-1]

    async def _approval(self, partition: str, record: RequestRecord, approval_id: str) -> Stored[Approval]:
        """One of a request's pauses."""
        key = keys.approval(approval_id)
        found = await self._records.get(partition, key, Approval)
        if found is None:
            lost = CorruptState(key, "is missing", **_ids(record))
            raise await self._records.unless_deleted(partition, record.task_id, lost)
        return found

    # --- the decision ----------------------------------------------------------------------------

    def _wanted(self, approval: Approval, actor: User, command: Command) -> Approval:
        """The pause as decided by `command`. `InvalidRequest` if the command does not fit the pause."""
        shown = {call.id: call for call in approval.calls}
        decisions: dict[str, Decision] = {}
        for n, decision in enumerate(command.decisions):
            if decision.id not in shown:
                raise InvalidRequest(
                    f"decisions.{n}.id",
                    f"is not a call of this pause; its calls are {', '.join(sorted(shown))}",
                )
            if decision.id in decisions:
                raise InvalidRequest(f"decisions.{n}.id", "is decided twice")
            decided = decisions[decision.id] = _decision(n, decision, command.action, shown[decision.id])
            if decided.arguments is not None and approval.status == "pending":
                self._check_edited(n, approval, shown[decision.id].tool, decision.arguments or {})
        missing = shown.keys() - decisions.keys() if approval.status == "pending" else set()
        unanswered = sorted(name for name in missing if shown[name].by_client)
        if unanswered and command.action == "approve":
            raise InvalidRequest(
                "decisions", f"cannot approve {', '.join(unanswered)} without output: {_CLIENTS}"
            )
        if command.action is None and (missing or not decisions):
            omitted = ", ".join(sorted(missing or shown))
            raise InvalidRequest("action", f"is needed for the calls that decisions omits: {omitted}")
        now = self._records.clock.now()
        return with_decisions(approval, now, actor, command.action, command.reason, list(decisions.values()))

    def _check_edited(self, n: int, approval: Approval, tool: str, arguments: Json) -> None:
        """`InvalidRequest` for edited arguments that the tool would refuse: a typo must not use up the
        decision."""
        try:
            self._service.agent.toolbox.with_brought(approval.brought).check(tool, arguments)
        except ToolFailed as failure:
            raise InvalidRequest(f"decisions.{n}.arguments", f"do not fit {tool}: {failure}") from None

    # --- carrying it out -------------------------------------------------------------------------

    def _run(self, caller: Caller, writer: TaskWriter, decided: Approval, *, streamed: bool) -> None:
        """Continues the request with the approved calls and the tool messages of the others."""
        now = self._records.clock.now()
        resumption = Resumption(approved_calls(decided), tool_messages(decided, now), decided.begun)
        self._service.start(caller, writer, resumption, streamed=streamed)


#: why a bare approval is not enough; not every protocol can send an output
_CLIENTS = "the client that declared the tool runs it and sends its output; others can only reject the call"


def _decision(n: int, decision: CallDecision, default: Action | None, call: ToolCall) -> Decision:
    if decision.output is not None:
        if not call.by_client:
            raise InvalidRequest(f"decisions.{n}.output", f"is not for {call.tool}: the service runs it")
        if decision.action == "reject":
            raise InvalidRequest(f"decisions.{n}.output", "cannot be given for a call that is rejected")
        if decision.arguments is not None:
            raise InvalidRequest(
                f"decisions.{n}.arguments", "cannot be edited for a call that has its output"
            )
        return Decision(id=decision.id, action="approve", output=decision.output, is_error=decision.is_error)
    action = decision.action or default
    if call.by_client and action == "approve":
        raise InvalidRequest(f"decisions.{n}.action", f"must be reject without an output: {_CLIENTS}")
    if action is None:
        raise InvalidRequest(f"decisions.{n}.action", "is needed: approve or reject")
    if decision.arguments is not None and action == "reject":
        raise InvalidRequest(f"decisions.{n}.arguments", "cannot be edited for a call that is rejected")
    return Decision(
        id=decision.id,
        action=action,
        arguments=_edited(decision.arguments, call),
        reason=decision.reason,
    )


def _edited(given: Json | None, call: ToolCall) -> str | None:
    """Edited arguments as canonical JSON, so that repeated decisions are equal; None if they are as shown."""
    if given is None:
        return None
    text = canonical(given)
    shown = arguments_of(call)  # a text if they are invalid
    return None if isinstance(shown, dict) and canonical(shown) == text else text.decode()


def _paused_again(record: RequestRecord) -> TealError:
    return ApprovalPending(again=True, approval_id=record.approvals[-1], **_ids(record))


def _approved_already(approval: Approval, wanted: Approval) -> None:
    """`AlreadyDecided` if `wanted` rejects or edits calls that are approved and wait only for the owner."""
    if any(decision.action == "reject" or decision.arguments is not None for decision in wanted.decisions):
        raise AlreadyDecided(
            "These calls are approved, and wait for the owner of the task to resume the request.",
            approval_id=approval.approval_id,
            request_id=approval.request_id,
            task_id=approval.task_id,
            session_id=approval.session_id,
        )


def _ids(record: RequestRecord) -> dict[str, str]:
    """The ids in the order in which errors about a request name them."""
    return dict(reversed(record.ids.items()))
