"""What a collective of the store should have cost, by the model of `models.collectives`."""

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from tracegap.models import collectives, hardware, nccl_tuner
from tracegap.models.collectives import Algorithm
from tracegap.models.errors import NoFormula, TracegapError
from tracegap.models.ops import CollectiveKind
from tracegap.models.units import NS_PER_US

_TO_ONE = (CollectiveKind.SEND.value, CollectiveKind.RECV.value)
_MOST_RANKS_OF_MATRIX = 64
"""Groups up to which every message of an uneven all-to-all is placed on its links; beyond, the busiest rank decides."""
_KEY = ["hardware", "collective", "message_bytes", "group_size", "group_ranks"]
_ANSWER = {"predicted_ns": pl.Int64, "predicted_by": pl.String, "tuned_ns": pl.Int64, "tuned_by": pl.String}
_TUNED = {
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
}  # fmt: skip
"""Kinds for which NCCL's tuner has a model."""
_ALGORITHM_KEYS = ("nccl_algo", "env.nccl_algo", "nccl.algo", "rccl_algo")
_ALGORITHM_OF: Mapping[str, Algorithm] = {
    "nvls": "in_network", "nvlstree": "in_network", "collnet": "in_network", "collnetdirect": "in_network",
    "collnetchain": "in_network", "sharp": "in_network", "in_network": "in_network", "ring": "ring", "tree": "tree",
    "hierarchical": "hierarchical",
}  # fmt: skip


def algorithm_of(config: Mapping[str, Any]) -> Algorithm:
    """The algorithm that a configuration asks for by NCCL_ALGO or its like: one, for all kinds; else the ring."""
    told = {key.lower(): value for key, value in config.items()}
    asked = next((told[key] for key in _ALGORITHM_KEYS if isinstance(told.get(key), str)), "")
    return _ALGORITHM_OF.get(asked.strip().lower(), "ring")


def predictions(calls: pl.DataFrame, topology: Mapping[str, Any], algorithm: Algorithm = "ring") -> list[pl.Series]:
    """predicted_ns and predicted_by, tuned_ns and tuned_by of each call; equal calls are predicted once.

    A message to one peer goes over the links between the two. Of an all-to-all whose ranks send differently the busiest
    rank or link of the whole instance decides, as far as its ranks are in the run.

    Args:
        calls: columns hardware, collective, message_bytes, group_size, group_ranks, rank, peer, instance_id, sent_bytes,
            received_bytes, send_splits.
        topology: torus and domains of the job, from its manifest.
        algorithm: what the configuration asks for; kinds that it does not do go by the ring.
    """
    to_one = pl.col("collective").is_in(_TO_ONE) & pl.col("peer").is_not_null() & pl.col("rank").is_not_null()
    two = pl.format("[{},{}]", pl.min_horizontal("rank", "peer"), pl.max_horizontal("rank", "peer"))
    barrier = pl.col("collective") == CollectiveKind.BARRIER.value
    calls = calls.with_columns(
        group_ranks=pl.when(to_one).then(two).otherwise("group_ranks"),
        group_size=pl.when(to_one).then(pl.lit(2, dtype=pl.Int64)).otherwise("group_size"),
        message_bytes=pl.when(barrier).then(pl.col("message_bytes").fill_null(0)).otherwise("message_bytes"),
    )
    different = calls.select(_KEY).unique()
    answers = [
        (*predict(*row, topology=topology, algorithm=algorithm), *tuned(*row, topology=topology, algorithm=algorithm))
        for row in different.rows()
    ]
    told = different.with_columns(
        pl.Series(name, [answer[i] for answer in answers], dtype=kind) for i, (name, kind) in enumerate(_ANSWER.items())
    )
    of_calls = calls.join(told, on=_KEY, how="left", nulls_equal=True, maintain_order="left")
    uneven = _uneven(calls, topology)
    if len(uneven):
        of_calls = of_calls.with_row_index("row_of").join(uneven, on="row_of", how="left", maintain_order="left")
        of_calls = of_calls.with_columns(
            predicted_ns=pl.when(pl.col("uneven_by").is_null()).then("predicted_ns").otherwise("uneven_ns"),
            predicted_by=pl.coalesce("uneven_by", "predicted_by"),
        )
    return [of_calls[name] for name in _ANSWER]


def _uneven(calls: pl.DataFrame, topology: Mapping[str, Any]) -> pl.DataFrame:
    """All-to-alls in which ranks send differently: row_of, uneven_ns, uneven_by."""
    exchanges = calls.with_row_index("row_of").filter(
        (pl.col("collective") == CollectiveKind.ALL_TO_ALL.value) & pl.col("sent_bytes").is_not_null()
    )
    alone = pl.format("alone {}", "row_of")
    exchanges = exchanges.with_columns(together=pl.coalesce(pl.col("instance_id").cast(pl.String), alone))
    most = pl.max_horizontal("sent_bytes", "received_bytes")
    exchanges = exchanges.with_columns(
        busiest=most.max().over("together"),
        differ=(pl.col("send_splits").is_not_null().any() | (most.n_unique() > 1)).over("together"),
    ).filter("differ")
    rows, known = [], dict[tuple[Any, ...], tuple[int | None, str]]()
    for part in exchanges.partition_by("together", maintain_order=True):
        first = part.row(0, named=True)
        key = (first["hardware"], first["group_size"], first["group_ranks"], first["busiest"], *part["send_splits"])
        if key not in known:
            known[key] = _of_exchange(part, first, topology)
        rows += [(row, *known[key]) for row in part["row_of"]]
    schema = {"row_of": pl.UInt32, "uneven_ns": pl.Int64, "uneven_by": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _of_exchange(part: pl.DataFrame, first: Mapping[str, Any], topology: Mapping[str, Any]) -> tuple[int | None, str]:
    """Time of an uneven all-to-all: from the whole matrix of messages, or by its busiest rank."""
    size = first["group_size"]
    ranks = json.loads(first["group_ranks"]) if first["group_ranks"] else None
    if size and size > 1 and ranks and set(part["rank"]) == set(ranks) and size <= _MOST_RANKS_OF_MATRIX:
        by_rank = dict(zip(part["rank"], part["send_splits"], strict=True))
        even = dict(zip(part["rank"], part["message_bytes"], strict=True))
        matrix = [json.loads(by_rank[r]) if by_rank[r] else [(even[r] or 0) // size] * size for r in ranks]
        try:
            fabric = _fabric(first["hardware"], ranks, topology)
            prediction = collectives.predict_uneven(matrix, fabric)
        except TracegapError as e:
            return None, str(e)
        return prediction.total_ns, f"{prediction.model}, uneven: its busiest rank or link"
    if not size or size < 2:
        return None, "unknown group size"
    # An even all-to-all in which every rank sends what the busiest one does.
    whole = first["busiest"] * size // (size - 1)
    ns, model = predict(first["hardware"], first["collective"], whole, size, first["group_ranks"], topology=topology)
    seen = "its busiest rank" if ranks and len(part) == size else f"the busiest of {len(part)} ranks that are seen"
    return ns, f"{model}, uneven: {seen}"


def _fabric(chip_id: str | None, ranks: list[int], topology: Mapping[str, Any]) -> collectives.Fabric:
    if chip_id is None:
        raise NoFormula("unknown part")
    return collectives.fabric_for(
        hardware.get(chip_id),
        ranks,
        ranks_per_domain=topology.get("ranks_per_domain"),
        torus=topology.get("torus"),
        wrap=topology.get("wrap"),
    )


def predict(
    chip_id: str | None,
    kind: str | None,
    message_bytes: int | None,
    group_size: int | None,
    group_ranks: str | None,
    *,
    topology: Mapping[str, Any],
    algorithm: Algorithm = "ring",
) -> tuple[int | None, str]:
    """Time of a collective by the model, ns, and the model used; None and the reason where something is unknown."""
    missing = [
        name
        for name, value in (("part", chip_id), ("kind", kind), ("size", message_bytes), ("group size", group_size))
        if value is None
    ]
    if missing or chip_id is None or kind is None or message_bytes is None or group_size is None:
        return None, f"unknown {' and '.join(missing)}"
    try:
        fabric = fabric_of(chip_id, group_size, group_ranks, topology)
        prediction = _by(algorithm, CollectiveKind(kind), message_bytes, group_size, fabric)
    except TracegapError as e:
        return None, str(e)
    return prediction.total_ns, prediction.model


def tuned(
    chip_id: str | None,
    kind: str | None,
    message_bytes: int | None,
    group_size: int | None,
    group_ranks: str | None,
    *,
    topology: Mapping[str, Any],
    algorithm: Algorithm = "ring",
) -> tuple[int | None, str]:
    """Time by NCCL's own model of the algorithm and protocol that it takes at this size, ns, and which they are.

    Not a bound: what protocols cost is in it. None and the reason where the model does not reach.
    """
    if chip_id is None or kind is None or message_bytes is None or not group_size or group_size < 2:
        return None, "part, kind, size or group size unknown"
    if CollectiveKind(kind) not in _TUNED:
        return None, f"NCCL has no model of {kind}"
    ranks = json.loads(group_ranks) if group_ranks else list(range(group_size))
    try:
        fabric = _fabric(chip_id, ranks, topology)
        communicator = nccl_tuner.Communicator.of(
            hardware.get(chip_id), group_size, fabric.domains, nvls=algorithm == "in_network"
        )
        choice = nccl_tuner.choose(CollectiveKind(kind), message_bytes, communicator)
    except TracegapError as e:
        return None, str(e)
    return round(choice.time_us * NS_PER_US), str(choice)


def _by(
    algorithm: Algorithm, kind: CollectiveKind, message_bytes: int, ranks: int, fabric: collectives.Fabric
) -> collectives.Prediction:
    """By the algorithm that is asked for, where it does the kind on such a fabric; else by the ring."""
    if algorithm != "ring":
        try:
            return collectives.predict(kind, message_bytes, ranks, fabric, algorithm=algorithm)
        except NoFormula:
            pass  # NCCL too falls back to what can do it
    return collectives.predict(kind, message_bytes, ranks, fabric)


def fabric_of(
    chip_id: str, group_size: int, group_ranks: str | None, topology: Mapping[str, Any]
) -> collectives.Fabric:
    """The links between the ranks of a group; without a list of them, the first ones of the job.

    Raises:
        TracegapError: the catalogue does not know the part or a link of it.
    """
    return _fabric(chip_id, json.loads(group_ranks) if group_ranks else list(range(group_size)), topology)
