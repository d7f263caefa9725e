"""Measured values, and what was promised of them."""

from dataclasses import dataclass
from typing import Literal

#: what a bound is on: `ours` over the floor's (or the memory store's) value, or `ours` itself
Of = Literal["ratio", "value"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value of the service, beside that of what it is compared with."""

    #: which measure it comes from
    measure: str
    name: str
    unit: str
    ours: float
    #: the floor's, or the in-memory store's; None where there is nothing to compare with
    base: float | None = None
    #: the most that was promised
    bound: float | None = None
    of: Of = "ratio"

    @property
    def ratio(self) -> float | None:
        return self.ours / self.base if self.base else None

    @property
    def held(self) -> bool | None:
        """Whether it is within its bound; None where nothing was promised."""
        if self.bound is None:
            return None
        measured = self.ratio if self.of == "ratio" else self.ours
        return measured is not None and measured <= self.bound
