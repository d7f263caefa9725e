"""The deadlines of one call of the model, on the event loop's clock. No I/O."""

from tealagents.domain.errors import ModelTimeout
from tealagents.llm.options import ModelOptions


class Deadlines:
    """The deadlines of one call: for the whole call, for its first delta, and for each delta after that.

    If no stream is asked for, the whole answer counts as the first delta.
    """

    def __init__(self, timeouts: ModelOptions, now: float, *, stream: bool = True) -> None:
        self._timeouts = timeouts
        self._stream = stream
        self._total_at = now + timeouts.model_timeout_seconds
        self._first_at = now + timeouts.first_piece_timeout_seconds
        #: True once a delta has arrived: the call is no longer retried, and the next delta has a deadline
        self.begun = False

    def due(self, waiting_since: float) -> float:
        """The time at which a wait that began at `waiting_since` is overdue."""
        if not self.begun:
            return min(self._first_at, self._total_at)
        return min(waiting_since + self._timeouts.piece_timeout_seconds, self._total_at)

    def recheck(self, now: float) -> float:
        """The time of the next check while no one waits."""
        return now + self._timeouts.piece_timeout_seconds

    def overdue(self, now: float) -> ModelTimeout:
        """The error for a wait that is overdue. It names the deadline."""
        if now >= self._total_at:
            seconds = self._timeouts.model_timeout_seconds
            return ModelTimeout(
                f"The model service was not done within {seconds:g} s (model_timeout_seconds). Ask for less, "
                "or raise the limit."
            )
        if not self.begun:
            seconds = self._timeouts.first_piece_timeout_seconds
            if not self._stream:
                return ModelTimeout(
                    f"The model service did not answer within {seconds:g} s (first_piece_timeout_seconds):"
                    " raise the limit, or stream the answer."
                )
            return ModelTimeout(
                f"The model service did not begin to answer in {seconds:g} s (first_piece_timeout_seconds). "
                "Try again, or raise the limit."
            )
        seconds = self._timeouts.piece_timeout_seconds
        return ModelTimeout(
            f"The model service fell silent in the middle of its answer for {seconds:g} s"
            " (piece_timeout_seconds). Try again, or raise the limit."
        )
