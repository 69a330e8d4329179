"""Rows of `collectives`: from the metadata that PyTorch copies onto collective kernels, or what else names the call."""

import json
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracegap.ingest.classify.dtypes import DTYPES
from tracegap.ingest.classify.kernel import collective_kind, collective_kind_of_call, kernel_dtype
from tracegap.ingest.readers._kineto_columns import integer
from tracegap.ingest.readers._kineto_events import NO_COMM, CommArgs
from tracegap.ingest.readers._kineto_host import Names
from tracegap.ingest.readers._kineto_ops import CpuOps, DeviceOps
from tracegap.ingest.trace import COLLECTIVES
from tracegap.models.ops import DTYPE_BYTES, CollectiveKind, OpClass


class Groups:
    """The process groups that `distributedInfo` lists."""

    def __init__(self, info: dict[str, Any]) -> None:
        config = info.get("pg_config")
        listed = [g for g in config if isinstance(g, dict)] if isinstance(config, list) else []
        self._ranks = {str(g.get("pg_name")): _rank_list(g.get("ranks")) for g in listed}
        self._sizes = {str(g.get("pg_name")): integer(g.get("pg_size")) for g in listed}
        self._descs = {str(g.get("pg_name")): str(g["pg_desc"]) for g in listed if g.get("pg_desc")}
        count = integer(info.get("pg_count")) or len(listed)
        self.only = next(iter(self._ranks)) if len(self._ranks) == 1 == count else None
        """Name of the group, where the job has just one."""

    def ranks(self, name: str | None) -> list[int] | None:
        """Global ranks of a group."""
        return self._ranks.get(name or "")

    def desc(self, name: str | None) -> str | None:
        """What the framework calls a group, such as `mesh_tp` or DATA_PARALLEL_GROUP."""
        return self._descs.get(name or "")

    def size(self, name: str | None) -> int | None:
        """Number of ranks of a group."""
        return self._sizes.get(name or "")


def device_collectives(
    ops: DeviceOps, comm_args: dict[int, CommArgs], groups: Groups, rank: int | None
) -> pl.DataFrame:
    """One row for each collective on a device: by its own metadata, else by that around its launch, else by shapes."""
    rows = []
    known: dict[tuple[Any, ...], dict[str, Any]] = {}  # of many calls little differs but their numbers
    ops_of = np.array(ops.collectives(), np.int64)
    columns = (ops.device["order"], ops.device["name"], ops.around["comm"], ops.around["tensors"])
    for i, order, name, comm, tensors in zip(ops_of.tolist(), *(c[ops_of].tolist() for c in columns), strict=True):
        args = comm_args.get(order) or comm_args.get(comm, NO_COMM)
        key = (name, *args[:-1])
        if key not in known:
            known[key] = _of_metadata(ops.names[name], args, groups)
            known[key] |= _exchange(known[key], args, rank)
        row = known[key] | {"op_id": i, "seq": integer(args.seq)}
        if args is NO_COMM and tensors >= 0:
            kind = CollectiveKind(row["collective"]) if row["collective"] else None
            if kind in (None, CollectiveKind.SEND_RECV):  # sends and receives may be an all-to-all: the call knows
                kind = collective_kind_of_call(ops.host.inputs_name(tensors)) or kind
                row["collective"] = None if kind is None else kind.value
            dims, types = _sent(ops.host.inputs_name(tensors), *ops.host.inputs(tensors)[:2])
            if dtype := kernel_dtype(ops.names[name]):  # lists of tensors do not tell theirs
                types = [dtype] * len(dims)
            message, dtype = _of_tensors(kind, dims, types, row["group_size"])
            row |= {"message_bytes": message, "dtype": dtype}
        rows.append(row)
    return pl.DataFrame(rows, schema=COLLECTIVES)


def span_collectives(ops: CpuOps, host: Names, groups: Groups) -> pl.DataFrame:
    """One row for each collective of a CPU back end, whose span has the shapes of its inputs."""
    rows = [
        _of_span(row["op_id"], host.names[label], host.inputs(inputs), groups)
        for row, (label, inputs) in zip(ops.rows, ops.spans, strict=True)
        if row["op_class"] == OpClass.COLLECTIVE
    ]
    return pl.DataFrame(rows, schema=COLLECTIVES)


def _of_metadata(kernel: str, args: CommArgs, groups: Groups) -> dict[str, Any]:
    call = args.collective if isinstance(args.collective, str) else ""
    kind = collective_kind_of_call(call) or collective_kind(kernel)
    name = str(args.group_name) if args.group_name not in (None, "") else None
    if name is None and args is NO_COMM:
        name = groups.only
    size = integer(args.group_size) or groups.size(name)
    ranks = _rank_list(args.group_ranks) or groups.ranks(name) or _stepped_ranks(args, size)
    dtype = DTYPES.get(args.dtype) if isinstance(args.dtype, str) else None
    peer = {CollectiveKind.SEND: args.dst_rank, CollectiveKind.RECV: args.src_rank}.get(kind) if kind else None
    desc = str(args.group_desc) if args.group_desc not in (None, "") else groups.desc(name)
    return _group_columns(name, ranks, size) | {
        "group_desc": desc,
        "collective": None if kind is None else str(kind),
        "message_bytes": _message_bytes(kind, args, size, dtype),
        "dtype": dtype,
        "peer": integer(peer),
    }


def _group_columns(name: str | None, ranks: list[int] | None, size: int | None) -> dict[str, Any]:
    """The same `group_id` on each rank of a group: names alone repeat, ranks alone may have several groups."""
    text = json.dumps(ranks, separators=(",", ":")) if ranks else None
    return {
        "group_id": " ".join(part for part in (name, text) if part) or None,
        "group_ranks": text,
        "group_size": len(ranks) if ranks else size,
    }


def _message_bytes(kind: CollectiveKind | None, args: CommArgs, size: int | None, dtype: str | None) -> int | None:
    """S of nccl-tests from the counts of elements on this rank; None where a count or the element size is not known."""
    sent, received = integer(args.in_nelems), integer(args.out_nelems)
    if dtype is None or kind is None or (not sent and not received):
        return None
    if kind is CollectiveKind.ALL_GATHER:
        elements = received or (sent * size if sent and size else None)
    elif kind is CollectiveKind.REDUCE_SCATTER:
        elements = sent or (received * size if received and size else None)
    elif kind in (CollectiveKind.GATHER, CollectiveKind.SCATTER):
        elements = max(sent or 0, received or 0)
    elif kind is CollectiveKind.RECV:
        elements = received or sent
    else:
        elements = sent or received
    return None if elements is None else int(elements * DTYPE_BYTES[dtype])


def all_to_all_splits(
    ops: DeviceOps, comm_args: dict[int, CommArgs], rank: int | None, groups: Groups
) -> list[dict[str, Any]]:
    """What leaves and enters this rank in each all-to-all, in the order of start: its own chunk never does.

    `send_bytes` and `recv_bytes` are None where the splits are uneven and the rank's place in its group is not known.
    """
    found = []
    rows = ops.collectives()
    told = [comm_args.get(order, NO_COMM) for order in ops.device["order"][rows].tolist()]
    exchanges = [(op_id, args) for op_id, args in zip(rows, told, strict=True) if _is_all_to_all(args)]
    for op_id, args in sorted(exchanges, key=lambda pair: int(ops.device["start"][pair[0]])):
        row = _exchange(_of_metadata(ops.name(op_id), args, groups), args, rank)
        uniform = row["send_splits"] is None and row["recv_splits"] is None
        found.append(
            {"op_id": op_id, "send_bytes": row["sent_bytes"], "recv_bytes": row["received_bytes"], "uniform": uniform}
        )
    return found


def _exchange(row: dict[str, Any], args: CommArgs, rank: int | None) -> dict[str, Any]:
    """What an all-to-all moves between this rank and the others, bytes; splits only where they are uneven."""
    if row["collective"] != CollectiveKind.ALL_TO_ALL or row["dtype"] is None:
        return dict.fromkeys(("sent_bytes", "received_bytes", "send_splits", "recv_splits"))
    ranks, width = json.loads(row["group_ranks"] or "[]"), DTYPE_BYTES[row["dtype"]]
    place = ranks.index(rank) if rank in ranks else None
    columns: dict[str, Any] = {}
    for name, splits, total, given in (
        ("sent_bytes", "send_splits", args.in_nelems, args.in_split),
        ("received_bytes", "recv_splits", args.out_nelems, args.out_split),
    ):
        split = _rank_list(given) or []
        columns[name] = _leaving(integer(total), split, row["group_size"], place, width)
        even = len(set(split)) <= 1
        columns[splits] = None if even else json.dumps([int(n * width) for n in split], separators=(",", ":"))
    return columns


def _is_all_to_all(args: CommArgs) -> bool:
    call = args.collective if isinstance(args.collective, str) else ""
    return collective_kind_of_call(call) is CollectiveKind.ALL_TO_ALL


def _leaving(
    total: int | None, split: list[int], size: int | None, place: int | None, width: float | None
) -> int | None:
    """Bytes of a buffer of `total` elements that go to or come from other ranks."""
    if total is None or width is None or not size:
        return None
    if len(set(split)) <= 1:
        return int((total - total // size) * width)
    return None if place is None or place >= len(split) else int((total - split[place]) * width)


def _of_span(op_id: int, name: str, inputs: list[Any], groups: Groups) -> dict[str, Any]:
    """A collective of a CPU back end."""
    kind = collective_kind_of_call(name)
    ranks, size = groups.ranks(groups.only), groups.size(groups.only)
    size = len(ranks) if ranks else size
    message, dtype = _of_tensors(kind, inputs[0], inputs[1], size)
    return _group_columns(groups.only, ranks, size) | {
        "op_id": op_id,
        "collective": None if kind is None else str(kind),
        "message_bytes": message,
        "dtype": dtype,
    }


SENT_BY = {
    "nccl:": slice(None),
    "rccl:": slice(None),
    "c10d::allreduce_": slice(1),
    "c10d::broadcast_": slice(1),
    "c10d::reduce_": slice(1),
    "c10d::_reduce_scatter_base_": slice(1, 2),  # output, input
    "c10d::_allgather_base_": slice(1, 2),
}
"""Which inputs of a call are what this rank sends, by the start of its name."""


def _sent(name: str, dims: list[Any] | None, types: list[Any] | None) -> tuple[list[Any], list[Any]]:
    """Shapes and types of what a rank sends."""
    part = next(part for start, part in SENT_BY.items() if name.startswith(start))
    return (dims or [])[part], (types or [])[part]


def _of_tensors(
    kind: CollectiveKind | None, dims: list[Any] | None, types: list[Any] | None, size: int | None
) -> tuple[int | None, str | None]:
    """S of nccl-tests and element type, from the tensors that a rank sends."""
    tensors = [(_shapes(d), DTYPES.get(t)) for d, t in zip(dims or [], types or [], strict=False) if isinstance(t, str)]
    known = [(sum(map(math.prod, shapes)), dtype) for shapes, dtype in tensors if dtype is not None]
    message = None
    if known and kind is not None:
        message = int(sum(n * DTYPE_BYTES[dtype] for n, dtype in known))
        if kind is CollectiveKind.ALL_GATHER:
            message = message * size if size else None
    return message, known[0][1] if known else None


def _shapes(dims: Any) -> Iterator[list[int]]:
    """Shapes in an entry of Input Dims: one, or those of a list of tensors."""
    if isinstance(dims, list) and dims and all(isinstance(d, list) for d in dims):
        for d in dims:
            yield from _shapes(d)
    elif isinstance(dims, list):
        yield dims


def _rank_list(value: Any) -> list[int] | None:
    """Ranks from a list or its text; None where there are none or the text is cut ("...")."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    if not isinstance(value, list) or not value or not all(type(r) is int for r in value):
        return None
    return value


def _stepped_ranks(args: CommArgs, size: int | None) -> list[int] | None:
    start, stride = integer(args.rank_start), integer(args.rank_stride)
    if start is None or start < 0 or not stride or not size:
        return [start] if start is not None and start >= 0 and size == 1 else None
    return [start + i * stride for i in range(size)]
