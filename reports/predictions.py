"""What a collective of the store should have cost, by the model of `models.collectives`."""

import json
from typing import Any

import polars as pl

from tracegap.models import collectives, hardware
from tracegap.models.errors import TracegapError
from tracegap.models.ops import CollectiveKind


def predictions(calls: pl.DataFrame, topology: dict[str, Any]) -> list[pl.Series]:
    """predicted_ns and predicted_by of each call; equal calls are predicted once.

    Args:
        calls: columns hardware, collective, message_bytes, group_size, group_ranks.
        topology: torus and domains of the job, from its manifest.
    """
    key = ["hardware", "collective", "message_bytes", "group_size", "group_ranks"]
    different = calls.select(key).unique()
    answers = [predict(*row, topology=topology) for row in different.rows()]
    told = different.with_columns(
        pl.Series("predicted_ns", [a[0] for a in answers], dtype=pl.Int64),
        pl.Series("predicted_by", [a[1] for a in answers], dtype=pl.String),
    )
    of_calls = calls.select(key).join(told, on=key, how="left", nulls_equal=True, maintain_order="left")
    return [of_calls["predicted_ns"], of_calls["predicted_by"]]


def predict(
    chip_id: str | None,
    kind: str | None,
    message_bytes: int | None,
    group_size: int | None,
    group_ranks: str | None,
    *,
    topology: dict[str, Any],
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
        prediction = collectives.predict(CollectiveKind(kind), message_bytes, group_size, fabric)
    except TracegapError as e:
        return None, str(e)
    return prediction.total_ns, prediction.model


def fabric_of(chip_id: str, group_size: int, group_ranks: str | None, topology: dict[str, Any]) -> collectives.Fabric:
    """The links between the ranks of a group; without a list of them, the first ones of the job.

    Raises:
        TracegapError: the catalogue does not know the part or a link of it.
    """
    return collectives.fabric_for(
        hardware.get(chip_id),
        json.loads(group_ranks) if group_ranks else list(range(group_size)),
        ranks_per_domain=topology.get("ranks_per_domain"),
        torus=topology.get("torus"),
        wrap=topology.get("wrap"),
    )
