"""How an answer is sent: its bytes, the pauses before them, and its end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from tealagents.llm.offline.answer import Fault, ModelAnswer, Pacing

Headers = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


class Frame(NamedTuple):
    """One event of a stream."""

    data: bytes
    #: Seconds to wait before it.
    delay: float = 0.0
    #: Whether it contains a piece of the answer.
    is_piece: bool = False


class BodyEnding(Enum):
    COMPLETE = auto()
    #: The connection is closed in the middle of the body.
    CUT = auto()
    #: The connection stays open, and nothing more is sent.
    SILENT = auto()


#: The seconds to wait, and the bytes that are sent then.
Step = tuple[float, bytes]


@dataclass(slots=True)
class Delivery:
    status: int
    headers: Headers
    steps: Sequence[Step]
    ending: BodyEnding = BodyEnding.COMPLETE
    headers_delay: float = 0.0
    #: Nothing is sent, not even headers.
    is_mute: bool = False
    #: Called once, before the last step of a complete answer is sent.
    commit: Callable[[], None] | None = None


def whole(
    body: bytes, *, status: int = 200, headers: Iterable[tuple[bytes, bytes]] = (JSON_TYPE,)
) -> Delivery:
    """A delivery of the whole body at once."""
    return Delivery(status, [*headers, (b"content-length", b"%d" % len(body))], [(0.0, body)])


def answered_whole(body: bytes, answer: ModelAnswer) -> Delivery:
    """A JSON answer with the answer's fault. It is sent when the last piece of a stream would be sent."""
    pacing, fault = answer.pacing, answer.fault
    sent, ending = _broken_body(body, fault)
    steps = _dribbled([(answer.duration(), sent)], pacing)
    delivery = whole(body)
    delivery.headers_delay = pacing.headers + (steps[0][0] if steps else 0.0)
    delivery.steps = [(0.0, steps[0][1]), *steps[1:]] if steps else []
    delivery.ending = ending
    delivery.is_mute = _is_mute(fault)
    return delivery


def _broken_body(body: bytes, fault: Fault | None) -> tuple[bytes, BodyEnding]:
    """The part of a body before its fault: `after_bytes`; by default half, or none after 0 pieces."""
    if fault is None or fault.kind not in _ENDINGS:
        return body, BodyEnding.COMPLETE
    length = fault.after_bytes
    if length is None:
        length = 0 if fault.after_pieces == 0 else len(body) // 2
    return body[: min(length, len(body) - 1)], _ENDINGS[fault.kind]


_ENDINGS = {"cut": BodyEnding.CUT, "silence": BodyEnding.SILENT}


def _is_mute(fault: Fault | None) -> bool:
    if fault is None or fault.kind != "silence":
        return False
    return fault.after_pieces is None and fault.after_bytes is None


def answered_in_stream(frames: list[Frame], answer: ModelAnswer, failure: Callable[[int], bytes]) -> Delivery:
    """An answer as a stream of events. `failure(n)` returns the error event that follows n other events."""
    pacing, fault = answer.pacing, answer.fault
    if fault is not None:
        frames = _broken_stream(frames, fault, failure)
    return Delivery(
        200,
        EVENT_STREAM,
        _dribbled(_merged(frames), pacing),
        ending=BodyEnding.COMPLETE if fault is None else _ENDINGS.get(fault.kind, BodyEnding.COMPLETE),
        headers_delay=pacing.headers,
        is_mute=_is_mute(fault),
    )


def _broken_stream(frames: list[Frame], fault: Fault, failure: Callable[[int], bytes]) -> list[Frame]:
    if fault.after_bytes is not None:
        return list(_first_bytes(frames, fault.after_bytes))
    kept = frames[: _frames_holding(frames, fault.after_pieces)]
    return [*kept, Frame(failure(len(kept)))] if fault.kind == "error" else kept


def _frames_holding(frames: list[Frame], pieces: int | None) -> int:
    """The number of frames up to the last of so many pieces (None: of all), which excludes the finish."""
    ends = (position + 1 for position, frame in enumerate(frames) if frame.is_piece)
    return max(ends if pieces is None else islice(ends, pieces), default=0)


def _first_bytes(frames: list[Frame], room: int) -> Iterable[Frame]:
    for frame in frames:
        if room <= 0:
            return
        yield frame._replace(data=frame.data[:room])
        room -= len(frame.data)


def _merged(frames: list[Frame]) -> list[Step]:
    """Joins frames without a delay between them, to be sent in one write."""
    steps: list[Step] = []
    wait, together = 0.0, list[bytes]()
    for data, delay, _ in frames:
        if delay:
            if together:
                steps.append((wait, b"".join(together)))
                wait, together = 0.0, []
            wait += delay
        together.append(data)
    if together:
        steps.append((wait, b"".join(together)))
    return steps


def _dribbled(steps: list[Step], pacing: Pacing) -> list[Step]:
    size = pacing.dribble_bytes
    if not size:
        return steps
    return [
        (wait if start == 0 else pacing.dribble_delay, data[start : start + size])
        for wait, data in steps
        for start in range(0, len(data), size)
    ]
