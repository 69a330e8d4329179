"""What a pipeline looks like from the messages between its ranks: its stages, microbatches and schedule. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracegap.models.schedules import SCHEDULES

MESSAGES = {
    "rank": pl.Int64,
    "peer": pl.Int64,
    "sends": pl.Boolean,
    "start_ns": pl.Int64,  # on the rank's own clock: only messages of one rank are compared
    "end_ns": pl.Int64,
}
"""Sends and receives of one step."""

_MICROBATCHES = re.compile(
    r"(?:^|[._])(?:num_|n_)?micro_?batches$|gradient_accumulation_steps$|num_microbatches_with_pipeline"
)
_SCHEDULE = re.compile(r"(?:pipeline|pp).*schedule|^schedule$")
_ALIASES = {
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "zero_bubble_h1",
    "zerobubble": "zero_bubble_h1",
    "zb1p": "zero_bubble_h1",
    "zbh1": "zero_bubble_h1",
    "zerobubbleh1": "zero_bubble_h1",
    "zbh2": "zero_bubble_h2",
    "zerobubbleh2": "zero_bubble_h2",
    "dualpipe": "dualpipe",
    "dualpipev": "dualpipe",
}
"""Names of schedules as configurations have them, without punctuation."""
_AXES = ("pipeline", "pipe", "pp", "stage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A pipeline."""

    stages: int | None
    microbatches: int | None
    virtual_stages: int
    schedule: str | None
    """A name of `models.schedules`; None = not recognised."""
    stage_of: dict[int, int]
    """Stage of each rank, where the messages make chains."""
    told_by: str
    """What each is taken from, or why it is unknown."""

    @property
    def plain_over_ideal(self) -> float | None:
        """(p - 1) / m: idle over busy time of GPipe and 1F1B (Narayanan et al. 2021; code P11)."""
        return None if self.stages is None or not self.microbatches else (self.stages - 1) / self.microbatches

    @property
    def schedule_over_ideal(self) -> float | None:
        """Idle over busy time by the formula of the schedule (`models.schedules`)."""
        if self.schedule is None or self.stages is None or not self.microbatches:
            return None
        return float(SCHEDULES[self.schedule].bubble_over_ideal(self.stages, self.microbatches, self.virtual_stages))


def recognise(messages: pl.DataFrame, mesh: Mapping[str, Any], config: Mapping[str, Any]) -> Shape | None:
    """The pipeline of a step; None where there is no sign of one.

    Args:
        messages: columns of MESSAGES.
        mesh: axes and their sizes.
        config: configuration, flat.
    """
    axis = next((int(mesh[a]) for a in _AXES if a in mesh), None)
    chains = _chains(messages)
    chain = chains[0] if chains else []
    if (axis or 1) < 2 and not len(messages):
        return None
    told = []
    stages = axis if axis is not None else len(chain) or None
    if stages is None:
        told.append("stages unknown: sends and receives make no chain of ranks and the mesh has no pipeline axis")
    else:
        told.append(f"stages by {'the mesh' if axis is not None else 'sends and receives'}")
    virtual = _first(config, re.compile(r"virtual_(?:pipeline_)?(?:model_parallel_)?(?:stages|size)"))
    virtual = virtual if isinstance(virtual, int) and virtual > 0 else 1
    microbatches = _first(config, _MICROBATCHES)
    if isinstance(microbatches, int) and microbatches > 0:
        told.append("microbatches by the configuration")
    else:
        microbatches = _counted(messages, chain)
        if microbatches is not None:
            microbatches //= virtual
        told.append("microbatches unknown" if microbatches is None else "microbatches by what the first stage sends")
    named = _ALIASES.get(
        re.sub(r"[^a-z0-9]", "", str(_first(config, _SCHEDULE) or "").lower().removeprefix("schedule"))
    )
    if named is None:
        named, why = _by_order(messages, chain, microbatches)
        told.append(why)
    else:
        told.append("schedule by the configuration")
    return Shape(
        stages=stages, microbatches=microbatches, virtual_stages=virtual, schedule=named,
        stage_of={rank: stage for each in chains for stage, rank in enumerate(each)}, told_by="; ".join(told),
    )  # fmt: skip


def _first(config: Mapping[str, Any], pattern: re.Pattern[str]) -> Any:
    return next((value for key, value in sorted(config.items()) if pattern.search(key.lower())), None)


def _chains(messages: pl.DataFrame) -> list[list[int]]:
    """Ranks from the first stage to the last, of each pipeline. Empty where they make no chains of one length.

    Of two neighbours, the one whose first message to the other is a send is the earlier stage: activations go first.
    """
    first = messages.sort("start_ns").unique(["rank", "peer"], keep="first", maintain_order=True).filter("sends")
    after = dict(first.select("rank", "peer").rows())
    behind = {peer: rank for rank, peer in after.items()}
    if len(after) != len(first) or len(behind) != len(after):
        return []
    chains = []
    for rank in sorted(rank for rank in after if rank not in behind):
        chains.append([rank])
        while chains[-1][-1] in after:
            chains[-1].append(after[chains[-1][-1]])
    ranks = sum(len(chain) for chain in chains)
    even = len({len(chain) for chain in chains}) == 1
    return chains if even and ranks == len(after) + len(chains) else []


def _counted(messages: pl.DataFrame, chain: list[int]) -> int | None:
    """Messages that the first stage sends to the second."""
    if not chain:
        return None
    return len(messages.filter(pl.col("sends") & (pl.col("rank") == chain[0]))) or None


def _by_order(messages: pl.DataFrame, chain: list[int], microbatches: int | None) -> tuple[str | None, str]:
    """GPipe or 1F1B, by how many microbatches the first stage sends before a gradient comes back: all, or one a stage."""
    if not chain or microbatches is None:
        return None, "schedule unknown"
    mine = messages.filter(pl.col("rank") == chain[0])
    back = mine.filter(~pl.col("sends"))["end_ns"].min()
    if back is None or microbatches <= len(chain):
        return None, "schedule not told by the order of messages: with so few microbatches GPipe and 1F1B are alike"
    sent = len(mine.filter(pl.col("sends") & (pl.col("start_ns") < back)))
    found = {microbatches: "gpipe", len(chain): "1f1b"}.get(sent)
    return found, "schedule by the order of messages" if found else "schedule unknown: another order of messages"
