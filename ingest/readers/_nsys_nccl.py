"""What NCCL's own NVTX ranges say of a communication kernel: kind, size, communicator, peer.

NCCL hands each call's arguments over as a payload: decoded JSON in older exports, bytes in newer ones (only where the
export included blobs). Sizes in payloads are of one rank's part; `Call.message_bytes` turns them into S of nccl-tests.
"""

import functools
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracegap.ingest.classify.kernel import collective_kind
from tracegap.ingest.readers._nsys_export import Export
from tracegap.models.ops import DTYPE_BYTES, CollectiveKind

COMMUNICATOR, SIZE, RANKS, PEER = "NCCL communicator ID", "Message size [bytes]", "No. of ranks", "Peer rank"
_PART_OF_ONE_RANK = {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL}
"""Calls whose size argument is one rank's part of S."""
_INPUT_IS_MESSAGE = {
    CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND,
}  # fmt: skip
_POINT_TO_POINT = {CollectiveKind.SEND, CollectiveKind.RECV, CollectiveKind.SEND_RECV}
_HEADER = struct.Struct("<IIIIQQ")  # domain, -, schema, -, bytes of payload, bytes in all
_CODES = {5: "i", 6: "I", 9: "q", 10: "Q", 15: "i", 16: "I", 17: "q", 18: "Q", 22: "Q"}
"""NVTX payload entry types that are whole numbers of fixed size, as struct codes."""

Schemas = Mapping[int, list[tuple[str, int, str]]]
"""Entries (name, offset in bytes, struct code) by schema id."""


def read_schemas(db: Export) -> Schemas:
    """Payload schemas of the file; rows repeat once a process."""
    columns = {"schemaId": pl.Int64, "idx": pl.Int64, "type": pl.Int64, "name": pl.String, "offset": pl.Int64}
    schemas: dict[int, list[tuple[str, int, str]]] = {}
    for schema, _, kind, name, offset in db.read("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns).unique().iter_rows():
        if kind in _CODES and name:
            schemas.setdefault(schema, []).append((name, offset or 0, _CODES[kind]))
    return schemas


def payload(schemas: Schemas, text: str | None, binary: bytes | None) -> dict[str, int]:
    """Whole numbers of a payload by name; empty where there is none or it cannot be decoded."""
    if text:
        try:
            values = json.loads(text)
        except ValueError:
            return {}
        return {k: v for k, v in values.items() if isinstance(v, int)} if isinstance(values, dict) else {}
    if not binary or len(binary) < _HEADER.size:
        return {}
    _, _, schema, _, size, total = _HEADER.unpack_from(binary)
    body = binary[_HEADER.size :]
    if schema not in schemas or len(body) < size or total not in (size, size + _HEADER.size, len(binary)):
        return {}
    return {
        name: struct.unpack_from(f"<{code}", body, offset)[0]
        for name, offset, code in schemas[schema]
        if offset + struct.calcsize(code) <= size
    }


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of one communication kernel."""

    kind: CollectiveKind | None
    group_id: str | None = None
    group_size: int | None = None
    message_bytes: int | None = None
    peer: int | None = None
    sent_bytes: int | None = None
    """Of an all-to-all: what leaves this rank."""
    received_bytes: int | None = None


class Calls:
    """NCCL's calls on host threads, grouped as ncclGroupStart and ncclGroupEnd group them."""

    def __init__(self, ranges: pl.DataFrame, schemas: Schemas) -> None:
        """`ranges` has row, globalTid, start, label, jsonText, binaryData of NCCL's ranges."""
        self._labels: dict[int, str] = {}
        self._values: dict[int, dict[str, int]] = {}
        self._group: dict[int, list[int]] = {}
        self._ranks: dict[int, int] = {}
        depth: dict[int, int] = {}
        calls: dict[int, list[int]] = {}
        wanted = ranges.sort("start").select("row", "globalTid", "label", "jsonText", "binaryData")
        for row, thread, label, text, binary in wanted.iter_rows():
            self._labels[row] = label
            values = self._values[row] = payload(schemas, text, binary)
            if COMMUNICATOR in values and RANKS in values:
                self._ranks[values[COMMUNICATOR]] = values[RANKS]
            if label == "ncclGroupStart":
                depth[thread] = depth.get(thread, 0) + 1
            elif label == "ncclGroupEnd":
                depth[thread] = max(0, depth.get(thread, 0) - 1)
                if not depth[thread]:
                    self._group[row] = calls.pop(thread, [])
            elif depth.get(thread):
                calls.setdefault(thread, []).append(row)
            else:
                self._group[row] = [row]

    def of(self, kernel: str, library_row: int, *, alone: bool) -> Call:
        """What the call around a launch (row -1: none) says; `alone`: it launched no other communication kernel."""
        kind = collective_kind(kernel)
        rows = [r for r in self._group.get(library_row, []) if self._kind(r) is not None]
        if kind in _POINT_TO_POINT:
            return self._point_to_point(kind, rows, alone=alone)
        rows = [r for r in rows if kind is None or self._kind(r) == kind]
        # Calls of one kind on one communicator that are grouped run as one kernel, and their sizes add up.
        told = [self._values[r] for r in rows]
        if (
            not rows
            or not alone
            or len({(self._kind(r), v.get(COMMUNICATOR)) for r, v in zip(rows, told, strict=True)}) > 1
        ):
            return Call(kind)
        group_id, ranks = self._communicator(told[0])
        kind = kind or self._kind(rows[0])
        sizes = _all_of(SIZE, told)
        size = sum(sizes) if sizes else None
        if size is not None and kind in _PART_OF_ONE_RANK:
            size = size * ranks if ranks else None
        return Call(kind, group_id, ranks, size)

    def _kind(self, row: int) -> CollectiveKind | None:
        return collective_kind(self._labels[row])

    def _communicator(self, values: Mapping[str, int]) -> tuple[str | None, int | None]:
        communicator = values.get(COMMUNICATOR)
        return (None, None) if communicator is None else (f"{communicator:#x}", self._ranks.get(communicator))

    def _point_to_point(self, kind: CollectiveKind | None, rows: list[int], *, alone: bool) -> Call:
        """Sends and receives of a group run in one kernel: its size is what this rank sends, else what it receives."""
        if not rows or not alone:
            return Call(kind)
        sends = [self._values[r] for r in rows if self._kind(r) == CollectiveKind.SEND]
        receives = [self._values[r] for r in rows if self._kind(r) == CollectiveKind.RECV]
        if not receives or not sends:
            kind = CollectiveKind.SEND if sends else CollectiveKind.RECV
        peers = _all_of(PEER, sends + receives)
        communicators = {v.get(COMMUNICATOR) for v in sends + receives}
        group_id, ranks = (
            self._communicator(sends[0] if sends else receives[0]) if len(communicators) == 1 else (None, None)
        )
        sizes = _all_of(SIZE, sends or receives)
        to, came = _all_of(PEER, sends), _all_of(PEER, receives)
        if ranks and ranks > 2 and min(len(set(to)), len(set(came))) >= ranks - 1:
            # To every other rank and from every other: an all-to-all, as PyTorch has NCCL do it. Own chunks are copied.
            received = _all_of(SIZE, receives)
            whole = len(set(to)) == len(set(came)) == ranks - 1
            return Call(
                CollectiveKind.ALL_TO_ALL, group_id, ranks, sum(sizes) if sizes else None,
                sent_bytes=sum(sizes) if sizes and whole else None,
                received_bytes=sum(received) if received and whole else None,
            )  # fmt: skip
        only_peer = peers[0] if peers and len(set(peers)) == 1 else None
        return Call(kind, group_id, ranks, sum(sizes) if sizes else None, only_peer)


def _all_of(name: str, calls: Iterable[Mapping[str, Any]]) -> list[int]:
    """The value of every call, or nothing where one lacks it."""
    values = [c.get(name) for c in calls]
    return [] if None in values else [v for v in values if v is not None]


@functools.lru_cache
def bytes_of_inputs(kind: CollectiveKind | None, shapes: str | None, dtype: str | None) -> int | None:
    """S from the input shapes (JSON) in the name of PyTorch's `nccl:...` range, for kinds whose S is the input."""
    if kind not in _INPUT_IS_MESSAGE or not shapes or dtype not in DTYPE_BYTES:
        return None
    elements = 0
    for shape in json.loads(shapes):
        if not isinstance(shape, list) or not all(isinstance(n, int) for n in shape):
            return None
        elements += math.prod(shape)
    return round(elements * DTYPE_BYTES[dtype]) if elements else None
