"""Which axis of the job's mesh a group of ranks is: from the mesh, the configuration, its name, or what runs on it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tracegap.models.mesh import AXES
from tracegap.models.ops import CollectiveKind

_MOSTLY = 0.8
_MANY = 8
"""All-reduces of one size in a step, from which on they are those of layers and not of buckets of gradients."""
_TWICE = 1.5
"""All-gathers for each reduce-scatter, from which on weights are gathered again in the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a group does, over all of its ranks in the run."""

    ranks: tuple[int, ...] | None
    """Ranks of the job; None: unknown."""
    size: int | None
    calls: Mapping[str, int] = field(default_factory=dict)
    """By kind."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Different sizes of messages, by kind."""
    most_of_one_size: Mapping[str, int] = field(default_factory=dict)
    """Calls of the most frequent size, by kind."""
    calls_in_step: Mapping[str, float] = field(default_factory=dict)
    """On one rank, by kind."""
    hidden_frac: float | None = None
    """Part of its communication beside compute."""
    ring: bool | None = None
    """Whether its messages go round; None: there are none, or their ways are unknown."""
    desc: str | None = None
    """What the framework calls it."""


Mesh = Mapping[str, int]
"""Axes and their sizes, the last one fastest."""


def axis_of(traffic: Traffic, mesh: Mesh, config: Mapping[str, Any], world_size: int | None) -> tuple[str | None, str]:
    """The axis (several that a group spans are joined by +), and how it is known, or why not."""
    if traffic.size == 1:
        return None, "one rank"
    for meshes, source in (((mesh,), "mesh"), (tuple(meshes_of(config, world_size)), "config")):
        found = next((axis for m in meshes if (axis := _on(m, traffic))), None)
        if found:
            return found, source
    named = _named(traffic.desc)
    if named:
        return named, "name"
    inferred = _inferred(traffic)
    return (inferred, "inferred") if inferred else (None, "neither mesh, configuration, name nor what runs on it tells")


def role(name: str) -> str:
    """What an axis of a mesh does, by its name; the name itself where it is not known."""
    return AXES.get(name, name)


def _on(mesh: Mesh, traffic: Traffic) -> str | None:
    """The axes of a mesh that a group spans, each whole; None where it spans none so."""
    if not mesh:
        return None
    sizes = list(mesh.values())
    if traffic.ranks is None:
        alike = [name for name, size in mesh.items() if size == traffic.size and size > 1]
        return role(alike[0]) if len(alike) == 1 else None
    if max(traffic.ranks) >= prod(sizes) or len(traffic.ranks) < 2:
        return None
    spanned, below = [], prod(sizes)
    for name, size in mesh.items():
        below //= size
        places = {rank // below % size for rank in traffic.ranks}
        if len(places) > 1:
            if len(places) != size:
                return None
            spanned.append(name)
    if prod(mesh[name] for name in spanned) != len(traffic.ranks):
        return None
    return "+".join(dict.fromkeys(role(name) for name in spanned))


# ------------------------------------------------------------------------------------------------------ configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """How a framework lays out ranks: keys of the sizes and roles, the slowest axis first; None: what is left over."""

    axes: Sequence[tuple[tuple[str, ...], str]]
    rest: str
    """Role of the axis that has the ranks which the others leave."""


_STYLES = (
    # Megatron-LM, --use-tp-pp-dp-mapping off: tp-cp-ep-dp-pp, the first fastest. Experts divide dp x cp.
    _Style(
        axes=(
            (("pipeline_model_parallel_size", "pp_size"), "pipeline"),
            (("data_parallel_size", "dp_size"), "data"),
            (("context_parallel_size", "cp_size"), "context"),
            (("tensor_model_parallel_size", "tp_size"), "tensor"),
        ),
        rest="data",
    ),
    # torchtitan: pp, dp_replicate, dp_shard, cp, tp.
    _Style(
        axes=(
            (("pipeline_parallel_degree",), "pipeline"),
            (("data_parallel_replicate_degree",), "data"),
            (("data_parallel_shard_degree",), "fsdp"),
            (("context_parallel_degree",), "context"),
            (("tensor_parallel_degree",), "tensor"),
        ),
        rest="fsdp",
    ),
    # DeepSpeed's PipeModelDataParallelTopology: pipe, data, model.
    _Style(
        axes=(
            (("pipe_parallel_size", "num_stages"), "pipeline"),
            (("dp_world_size",), "data"),
            (("model_parallel_size", "mp_size"), "tensor"),
        ),
        rest="data",
    ),
)
_EXPERTS = ("expert_model_parallel_size", "expert_parallel_degree", "ep_size", "moe_expert_parallel_size")


def meshes_of(config: Mapping[str, Any], world_size: int | None) -> Iterator[Mesh]:
    """Meshes that the sizes in a configuration give, in the way of the framework whose keys they are.

    The one of dense layers; and where experts are divided, the one of their layers, in which the axis of the data is what the
    experts leave.
    """
    last = {str(key).rpartition(".")[2].lower().replace("-", "_"): value for key, value in config.items()}
    told = {key: int(value) for key, value in last.items() if _is_size(value)}
    for style in _STYLES:
        sizes = {name: next((told[k] for k in keys if k in told), None) for keys, name in style.axes}
        if not any(sizes.values()) or not world_size:
            continue
        mesh = {name: size if size and size > 0 else 1 for name, size in sizes.items()}
        if not sizes[style.rest] or (sizes[style.rest] or 0) < 0:
            others = prod(size for name, size in mesh.items() if name != style.rest)
            if world_size % others:
                continue
            mesh[style.rest] = world_size // others
        if prod(mesh.values()) != world_size:
            continue
        yield mesh
        experts = next((told[k] for k in _EXPERTS if told.get(k, 1) > 1), None)
        shared = prod(size for name, size in mesh.items() if name not in ("pipeline", "tensor"))
        if experts and shared % experts == 0:
            yield {
                "pipeline": mesh.get("pipeline", 1), "expert_data": shared // experts, "expert": experts,
                "tensor": mesh.get("tensor", 1),
            }  # fmt: skip


def _is_size(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None
    )


# ------------------------------------------------------------------------------------------------ names and what runs

_WORDS = (
    ("expert", r"expert|moe|\bep\b"),
    ("fsdp", r"fsdp|\bshard"),
    ("context", r"context|\bcp\b|sequence[ -]parallel"),
    ("tensor", r"tensor|\btp\b|\bmp\b|model[ -]parallel"),
    ("pipeline", r"pipe|\bpp\b|\bstage"),
    ("data", r"\bdata|\bdp\b|replicate|\bddp\b"),
)


def _named(desc: str | None) -> str | None:
    """The axis in the words of a group's name; Megatron's model parallel groups are named by what splits them."""
    text = (desc or "").lower().replace("_", " ")
    text = re.sub(r"(tensor|pipeline|context|expert) model parallel", r"\1", text)
    text = re.sub(r"\bdp[ -]?shard", "fsdp", text)
    hits = [axis for axis, words in _WORDS if re.search(words, text)]
    return "+".join(hits) if hits else None


def _inferred(traffic: Traffic) -> str | None:
    """From what runs on it. Marked as such, since a job may use collectives in a way of its own."""
    calls = traffic.calls
    total = sum(calls.values())
    if not total:
        return None

    def part(*kinds: CollectiveKind) -> float:
        return sum(calls.get(kind.value, 0) for kind in kinds) / total

    gathers, scatters = (calls.get(k.value, 0) for k in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER))
    kind = CollectiveKind
    if part(kind.ALL_TO_ALL) >= 0.5:
        return "expert"
    if part(kind.SEND, kind.RECV, kind.SEND_RECV, kind.PERMUTE) >= _MOSTLY:
        return {True: "context", False: "pipeline"}.get(traffic.ring) if traffic.ring is not None else None
    if part(kind.ALL_GATHER, kind.REDUCE_SCATTER) >= 0.5 and gathers and scatters:
        # Activations are of one size and gathered as often as scattered; weights are of many, and gathered twice.
        several = traffic.sizes.get(kind.REDUCE_SCATTER.value, 0) > 1
        return "fsdp" if several or gathers >= _TWICE * scatters else "tensor"
    reduces = calls.get(kind.ALL_REDUCE.value, 0)
    if part(kind.ALL_REDUCE) >= 0.5:
        alike = traffic.most_of_one_size.get(kind.ALL_REDUCE.value, 0) >= _MOSTLY * reduces
        often = traffic.calls_in_step.get(kind.ALL_REDUCE.value, 0) >= _MANY
        in_the_way = traffic.hidden_frac is not None and traffic.hidden_frac < 0.5
        return "tensor" if alike and often and in_the_way else "data"
    return None
