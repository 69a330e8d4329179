"""What an operation has to do at least: FLOPs and bytes, a value that adds."""

from dataclasses import dataclass

from tracegap.models.errors import BadShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Work of an operation, independent of the chip. Costs add; what a summand does not know the sum does not."""

    flops: int | None
    """Arithmetic done, one multiply-add = 2; transcendental functions count 1. None = unknown."""
    bytes: int | None
    """Compulsory traffic with device memory: each stored element read once, each result written. None = unknown."""
    dtype: str | None = None
    """Math dtype, a key of `models.ops.DTYPE_BYTES`: its peak applies. None = unknown, or no arithmetic."""
    note: str | None = None
    """Why something is unknown, or what the figures assume."""

    def __add__(self, other: "Cost") -> "Cost":
        """Cost of both, one after the other; raises BadShape where no single peak would apply to the sum."""
        if self.dtype and other.dtype and self.dtype != other.dtype and self.flops and other.flops:
            raise BadShape(f"costs in {self.dtype} and {other.dtype} have no common peak; keep them apart")
        leading = self if self.flops or not other.flops else other
        notes = dict.fromkeys(part for c in (self, other) if c.note for part in c.note.split("; "))
        return Cost(
            flops=None if self.flops is None or other.flops is None else self.flops + other.flops,
            bytes=None if self.bytes is None or other.bytes is None else self.bytes + other.bytes,
            dtype=leading.dtype or self.dtype or other.dtype,
            note="; ".join(notes) or None,
        )


NOTHING = Cost(flops=0, bytes=0)
"""The cost of doing nothing: neutral in sums."""
