"""What a described run must cost at least: `tracegap plan`, and the model FLOPs that MFU needs."""

import dataclasses
from typing import Any

from tracegap.ingest.manifest import Manifest
from tracegap.models import hardware
from tracegap.models.architecture import Model
from tracegap.models.errors import TracegapError
from tracegap.models.plan import plan
from tracegap.models.units import human, human_ns


def model_of(description: dict[str, Any]) -> Model:
    """The model that the [model] table of a manifest describes; keys that the theory does not use are left alone.

    Raises:
        TracegapError: it lacks a key that the theory needs.
    """
    known = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(Model)}
    missing = [name for name, needed in (known | {"seq": True}).items() if needed and name not in description]
    if missing:
        raise TracegapError(f"[model] of the manifest lacks {', '.join(missing)}")
    return Model(**{k: v for k, v in description.items() if k in known})


def plan_of(described: Manifest, chip_id: str | None) -> dict[str, Any]:
    """The plan of a described run, as JSON prints it; `chip_id` goes before the manifest's part.

    Raises:
        TracegapError: the manifest does not say enough, or a part or rate is unknown.
    """
    part = chip_id or described.hardware
    lacking = [
        name
        for name, value in (
            ("[model]", described.model),
            ("tokens_per_step", described.tokens_per_step),
            ("hardware (or --hardware)", part),
        )
        if value is None
    ]
    if described.model is None or described.tokens_per_step is None or part is None:
        raise TracegapError(f"the manifest lacks {', '.join(lacking)}")
    topology = described.topology or {}
    result = plan(
        model_of(described.model),
        hardware.get(part),
        described.mesh or {"data": described.world_size or 1},
        described.tokens_per_step,
        ranks_per_domain=topology.get("ranks_per_domain"),
        torus=topology.get("torus"),
        wrap=topology.get("wrap"),
    )
    return {
        "hardware": part,
        **dataclasses.asdict(result),
        "fits": result.fits,
        "memory_total": result.memory.total,
    } | {"traffic": [dataclasses.asdict(t) for t in result.traffic]}


def rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The plan as a table: what, how much, by which assumption."""
    memory, capacity = result["memory"], result["memory_bytes"]
    fits = {True: "fits", False: "does not fit", None: "memory of the part unknown"}[result["fits"]]
    out = [
        ("devices", str(result["devices"]), result["hardware"]),
        ("parameters", human(result["params"]), "norm vectors left out"),
        (
            "memory a device",
            human(result["memory_total"], "B"),
            f"{fits}" + (f" into {human(capacity, 'B')}" if capacity else ""),
        ),
        *((f"  {name}", human(value, "B"), "") for name, value in memory.items()),
        ("compute", human_ns(result["compute_ns"]), f"{human(result['flops_per_device'], 'FLOP')} at the dense peak"),
        ("pipeline bubble", human_ns(result["bubble_ns"]), f"{result['microbatches']} microbatches"),
    ]
    for t in result["traffic"]:
        what = f"{t['collective']} on {t['axis']}"
        out.append(
            (
                what,
                human_ns(t["total_ns"]),
                f"{t['calls']} × {human(t['message_bytes'], 'B')} over {t['ranks']} ranks, {t['fabric']}",
            )
        )
    out.append(("step at least", human_ns(result["lower_ns"]), f"all communication hides; bound by {result['bound']}"))
    out.append(("step at most", human_ns(result["upper_ns"]), "no communication hides"))
    return out
