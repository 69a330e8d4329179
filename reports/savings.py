"""What findings may claim to save: each nanosecond of the typical step once.

A ledger has, of each bucket, what it is made of: pieces of operations, of idle time, or the step itself. A claim draws
from given pieces; what it takes is gone for later claims. So the savings that draw on a bucket never add to more than
the bucket, and all savings never to more than the gap: the wall time less what physics needs. All amounts are whole
nanoseconds, totals over the device steps of the typical step; a bucket that is negative gives nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import duckdb
import numpy as np
from numpy.typing import NDArray

from tracegap.ingest import store
from tracegap.ingest.intervals import apportion
from tracegap.reports.buckets import BUCKETS
from tracegap.reports.summary import MINIMUM
from tracegap.reports.typical import IDLE_BUCKETS, OP_BUCKETS

Ints = NDArray[np.int64]
NEEDED = tuple(b.removesuffix("_ns") for b in MINIMUM)
"""Buckets that physics needs as things are: a claim on one (other arithmetic, other traffic) is heard after all others."""


@dataclass(slots=True)
class _Account:
    """What is left of a bucket."""

    left: int
    """Of the bucket as a whole."""
    units: Ints
    """Pieces that have something of it, ascending."""
    amounts: Ints
    """What is left of each."""

    def at(self, units: Ints | None) -> Ints:
        """Places of those of the units that are pieces of this bucket; of all, for None."""
        if units is None:
            return np.arange(len(self.units))
        units = np.unique(units)
        at = np.searchsorted(self.units, units)
        at[at == len(self.units)] = 0
        return at[self.units[at] == units] if len(self.units) else at[:0]


@dataclass(slots=True, kw_only=True)
class Ledger:
    """What is left to be claimed of the typical step of a run."""

    device_steps: int
    """Rows of `step_gap` that the totals are over; savings are means over these."""
    room: int
    """What is left of the gap."""
    accounts: dict[str, _Account] = field(default_factory=dict)

    @classmethod
    def load(cls, con: duckdb.DuckDBPyConnection) -> "Ledger":
        """From the tables of `reports.typical`."""
        sums = ", ".join(f"coalesce(sum({b.column}), 0)" for b in BUCKETS)
        totals = con.execute(f"select count(*), coalesce(sum(wall_ns), 0), {sums} from typical_step").fetchall()[0]
        of = {b.name: int(total) for b, total in zip(BUCKETS, totals[2:], strict=True)}
        ledger = cls(device_steps=int(totals[0]), room=int(totals[1]) - sum(of[b] for b in NEEDED))
        for bucket, total in of.items():
            pieces = store.frame_of(con, f"{_pieces(bucket)} order by unit")
            units, amounts = (pieces[c].cast(int).to_numpy().copy() for c in ("unit", "ns"))
            ledger.accounts[bucket] = _Account(total, units, amounts)
        return ledger

    def open(self, bucket: str, units: Ints | None) -> int:
        """What could be claimed of some pieces of a bucket (None: of all of it), were the rest of the gap large enough."""
        account = self.accounts[bucket]
        return max(0, min(account.left, int(account.amounts[account.at(units)].sum())))

    def claim(self, bucket: str, units: Ints | None, wanted: int) -> int:
        """Takes up to `wanted` from the pieces, from each in proportion to what it has left; returns what was taken."""
        account = self.accounts[bucket]
        taken = max(0, min(wanted, self.open(bucket, units), self.room))
        if taken:
            at = account.at(units)
            left = account.amounts[at]
            parts = np.asarray(left * (taken / int(left.sum())), dtype=np.float64)
            account.amounts[at] -= apportion(parts, np.zeros_like(at), np.array([taken]))
            account.left -= taken
            self.room -= taken
        return taken


def _pieces(bucket: str) -> str:
    """Query for what a bucket is made of: unit and ns."""
    idle = f"select unit, idle_ns as ns from typical_idle where bucket = '{bucket}'"
    if bucket in IDLE_BUCKETS:
        return idle
    if bucket in OP_BUCKETS:
        # Receives that wait for their sender are operations, on the host they are idle time.
        return f"select unit, {bucket}_ns as ns from typical_op where {bucket}_ns > 0 union all by name {idle}"
    return f"select 0 as unit, cast(sum({bucket}_ns) as bigint) as ns from typical_step having ns > 0"


@dataclass(slots=True, kw_only=True)
class Claim:
    """What one finding asks of the ledger, and what it got: totals over the device steps."""

    wanted: Mapping[str, int]
    """By bucket."""
    units: Ints | None
    """Pieces that it may draw from; None: all of the buckets."""
    open: int = 0
    """What was not yet claimed by others when its turn came, of what it wants."""
    granted: dict[str, int] = field(default_factory=dict)
    """By bucket."""


def settle(ledger: Ledger, claims: Iterable[Claim]) -> None:
    """Grants claims in their order: first what they want of buckets that could go, then of those that physics needs."""
    ordered = list(claims)
    for needed in (False, True):
        for claim in ordered:
            for bucket, wanted in claim.wanted.items():
                if (bucket in NEEDED) == needed and wanted > 0:
                    claim.open += min(wanted, ledger.open(bucket, claim.units))
                    taken = ledger.claim(bucket, claim.units, wanted)
                    if taken:
                        claim.granted[bucket] = claim.granted.get(bucket, 0) + taken
