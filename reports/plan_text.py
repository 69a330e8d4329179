"""The answer of `tracegap plan` on one screen."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from tracegap.models.units import human, human_ns, significant
from tracegap.reports import people, tables

_FITS = {True: "fits", False: "does not fit", None: "memory of the part unknown"}


def screen(result: dict[str, Any]) -> list[RenderableType]:
    """What the terminal shows."""
    out: list[RenderableType] = [tables.table(["", "", ""], rows(result))]
    if len(result.get("ranking") or ()) > 1:
        out.append(_ranking(result))
    if result.get("serving") and result["serving"]["points"]:
        out.append(_frontier(result["serving"]))
    return out


def rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The answer as a table: what, how much, by which assumption."""
    return [*_head(result), *_body(result)]


def _head(r: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    active = r["active_params"]
    yield "model", r["model"], r["source"]
    yield (
        "parameters",
        human(r["params"]),
        f"{human(active)} used by a token" if active != r["params"] else "",
    )
    for words in r["assumed"]:
        yield "assumed", words, ""


def _body(r: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if r.get("serving"):
        yield from _serving(r, r["serving"])
    else:
        yield from _training(r)
    if r["smell"]:
        smell = r["smell"]
        yield (
            "your rate",
            f"{significant(smell['measured_tflops'])} TFLOP/s a device",
            f"{smell['verdict']} ({people.percent(smell['share_of_peak'])} of the peak)",
        )
    # Rates of trainings say nothing of a server
    for training in () if r.get("serving") else r["published"]:
        rate = human(training["flops_per_s"], "FLOP/s")
        yield "people reach", rate, f"{training['run']}, {training['devices']:,} devices: {training['note']}"


def _training(r: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    fewest = r["fewest_devices"]
    yield (
        "fits on",
        people.plural(fewest, "device") if fewest else "no number of devices that was tried",
        f"{r['hardware_name']}, {r['tokens_per_step']:,} tokens a step; the fewest, "
        + ("of whole nodes" if fewest and fewest & (fewest - 1) else "in powers of two"),
    )
    if not r["ranking"]:
        yield "this many", people.plural(r["devices"] or 0, "device"), f"no mesh fits: {r['unfit']}"
        return
    memory, capacity = r["memory"], r["memory_bytes"]
    yield "mesh", mesh_text(r["mesh"]), f"{people.plural(r['devices'], 'device')}; {recipe_text(r['ranking'][0])}"
    yield (
        "memory a device",
        human(r["memory_total"], "B"),
        _FITS[r["fits"]] + (f" into {human(capacity, 'B')}" if capacity else ""),
    )
    if r["remedies"]:
        yield "", "", f"try {', '.join(r['remedies'][:-1])} or {r['remedies'][-1]}"
    yield "", "", ", ".join(f"{name} {human(value, 'B')}" for name, value in memory.items() if value)
    yield (
        "compute",
        human_ns(r["compute_ns"]),
        f"{human(r['flops_per_device'], 'FLOP')} a device at the dense {r['math_dtype']} peak",
    )
    if r["offload_ns"]:
        yield (
            "activations",
            human_ns(r["offload_ns"]),
            "to the host beside the forward pass, and as long back beside the backward",
        )
    if r["bubble_ns"]:
        yield "pipeline bubble", human_ns(r["bubble_ns"]), f"{r['microbatches']} microbatches"
    for t in r["traffic"]:
        yield (
            traffic_text(t),
            human_ns(t["total_ns"]),
            f"{human_ns(t['exposed_ns'])} exposed; {t['calls']} × {human(t['message_bytes'], 'B')}, {t['fabric']}",
        )
    for name, tower in r["towers"].items():
        yield (
            f"tower {name}",
            human_ns(tower["predicted_ns"]),
            f"{human(tower['params'])} parameters on {mesh_text(tower['mesh'])}, {human(tower['memory_total'], 'B')}; "
            "its time and memory are in the totals",
        )
    yield "step at least", human_ns(r["lower_ns"]), f"all communication hides; bound by {r['bound']}"
    yield (
        "step to expect",
        human_ns(r["predicted_ns"]),
        f"{_reachable(r['reachable_share'])}: "
        f"{people.percent(r['mfu'])} MFU, {human(r['flops_per_s_per_device'], 'FLOP/s')} a device",
    )
    yield "step at most", human_ns(r["upper_ns"]), "no communication hides"
    if r["optimal_tokens"] is not None:
        yield "compute-optimal", human(r["optimal_tokens"]), "tokens, 20 a parameter that a token uses"
    if r["campaign"]:
        yield from _campaign(r["campaign"], tuning=r["optimal_tokens"] is None)
    if r["scaling"]:
        limit, points = r["scaling"]["limit"], r["scaling"]["points"]
        yield (
            "strong scaling",
            people.plural(limit, "device") if limit else "no limit found",
            "from here on arithmetic is less than half of a step on any mesh, at this batch"
            if limit
            else "arithmetic can be half of a step or more"
            + (f" up to {people.plural(points[-1]['devices'], 'device')}, the most tried" if points else ""),
        )


def _reachable(share: float) -> str:
    if share == 1:
        return "matrix products at the peak, for nobody published what they reach on this part"
    return f"matrix products at {people.percent(share)} of the peak"


def _campaign(c: dict[str, Any], *, tuning: bool) -> Iterator[tuple[str, str, str]]:
    goodput = c["goodput"]
    yield (
        "training",
        f"{significant(c['days'])} days",
        f"{human(c['tokens'])} tokens, {c['steps']:,.0f} steps, {human(c['device_hours'])} device-hours"
        + (f", {c['usd']:,.0f} USD" if c["usd"] is not None else ""),
    )
    yield (
        "goodput",
        people.percent(goodput["share"]),
        f"a failure every {goodput['mtbf_s'] / 3600:.1f} h, a checkpoint every {goodput['interval_s'] / 60:.0f} min",
    )
    yield (
        "6PD",
        f"{c['flops_6pd']:.3g} FLOP",
        f"{significant(c['tokens_per_param'])} tokens a parameter"
        + ("" if tuning else f"; optimal at 20 for {human(c['optimal_params'])}"),
    )


def _serving(r: dict[str, Any], s: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    fewest = s["fewest_devices"]
    yield (
        "server",
        people.plural(s["devices"], "device"),
        f"{r['hardware_name']}; weights {s['weight_dtype']}, cache {s['kv_dtype']}, products {s['math_dtype']}; "
        + (f"fits on {fewest}" if fewest else "memory of the part unknown"),
    )
    yield "weights", human(s["weight_bytes"], "B"), ""
    yield (
        "cache a sequence",
        human(s["cache_bytes_per_sequence"], "B"),
        f"{s['prompt']:,} tokens of prompt, {s['answer']:,} of answer; {_room(s['max_sequences'])}",
    )
    if s["unfit"]:
        yield "does not fit", "not one sequence", s["unfit"]
        return
    yield (
        "prefill",
        human_ns(s["prefill_s"] * 1e9),
        f"a prompt, at {people.percent(s['prefill_share_of_peak'])} of the peak",
    )
    if s["disaggregation"]:
        d = s["disaggregation"]
        moved = "" if d["transfer_s"] is None else f"; a cache moves in {human_ns(d['transfer_s'] * 1e9)}"
        yield (
            "disaggregation",
            significant(d["prefill_servers_per_decode_server"]),
            f"prefill servers for each decode server at batch {d['batch']}{moved}",
        )
        p = s["speculation"]
        yield (
            "speculation",
            f"{p['speedup_at_batch_1']:.2f} ×",
            f"at batch 1, {p['speedup_at_most']:.2f} × at {d['batch']}: {p['draft_len']} draft tokens, "
            f"{people.percent(p['accept'])} accepted, each at {people.percent(p['draft_cost'])} of a step",
        )


def _room(sequences: int | None) -> str:
    return "memory of the part unknown" if sequences is None else f"room for {people.plural(sequences, 'sequence')}"


def _frontier(s: dict[str, Any]) -> RenderableType:
    return tables.table(
        ["batch", "step", "tokens/s", "tokens/s a device", "bound by"],
        [
            (
                p["batch"],
                human_ns(p["step_s"] * 1e9),
                human(p["tokens_per_s"]),
                human(p["tokens_per_s_per_device"]),
                p["bound"],
            )
            for p in s["points"]
        ],
    )


def _ranking(r: dict[str, Any]) -> RenderableType:
    return tables.table(
        [f"best of {r['fitting']} meshes that fit ({r['tried']} tried)", "step", "MFU", "memory", "bound by", "how"],
        [
            (
                mesh_text(c["mesh"]),
                human_ns(c["predicted_ns"]),
                people.percent(c["mfu"]),
                human(c["memory_total"], "B"),
                c["bound"],
                recipe_text(c),
            )
            for c in r["ranking"]
        ],
    )


def mesh_text(mesh: dict[str, int]) -> str:
    """A mesh as it is written: "fsdp=16,tensor=8"."""
    return ",".join(f"{axis}={ways}" for axis, ways in mesh.items() if ways > 1) or "one device"


def traffic_text(t: dict[str, Any]) -> str:
    """What is sent over which axis: "all_gather on fsdp (experts)"."""
    return f"{t['collective']} on {t['axis']}" + (f" ({t['of']})" if t["of"] else "")


def recipe_text(c: dict[str, Any]) -> str:
    """How a mesh of a ranking is run, in words."""
    words = [f"{c['microbatches']} microbatch{'es' if c['microbatches'] > 1 else ''}"]
    if c["recompute"] != "none":
        words.append(f"{c['recompute']} recomputation")
    if c["zero"]:
        words.append(f"ZeRO {c['zero']}")
    if "pipeline" in c["mesh"]:
        chunks = f" × {c['virtual_stages']}" if c["virtual_stages"] > 1 else ""
        words.append(c["schedule"] + chunks)
    return ", ".join(words)
