"""The page of a plan: scaling curve, memory by component, time by axis, or a server's throughput against latency."""

from typing import Any

import altair as alt
import polars as pl

from tracegap.models.units import TERA
from tracegap.reports import people, plan_text, theme
from tracegap.reports.section import Column, Figure, Section

_MEMORY = {
    "weights": ("weights", theme.BLUE),
    "gradients": ("gradients", theme.TEAL),
    "optimizer": ("optimizer", theme.PURPLE),
    "activations": ("activations", theme.ORANGE),
    "buffers": ("buffers", theme.GREY),
    "margin": ("fragmentation margin", "#c3c7cd"),
}
_HIDING = {
    "device": ("arithmetic and memory", theme.BLUE),
    "exposed": ("exposed communication", theme.ORANGE),
    "hidden": ("hidden communication", theme.GREY),
}
_CURVE = {"predicted": ("expected", theme.BLUE), "ideal": ("model FLOPs alone", theme.GREY)}


def describe(result: dict[str, Any]) -> dict[str, Any]:
    """What the template needs of an answer of `planning.answer`."""
    sections = _serving_sections(result["serving"]) if result.get("serving") else _training_sections(result)
    return _head(result) | {"sections": sections}


def _head(r: dict[str, Any]) -> dict[str, Any]:
    if r.get("serving"):
        s = r["serving"]
        best = max(s["points"], key=lambda p: p["tokens_per_s"], default=None)
        headline = "Not even one sequence fits."
        room = "unknown" if s["max_sequences"] is None else people.plural(s["max_sequences"], "sequence")
        numbers = [("room for", room, s["unfit"] or "beside the weights")]
        if best:
            headline = (
                f"Up to {people.count(round(best['tokens_per_s']))} tokens/s on {s['devices']} × {r['hardware_name']}, "
                f"a token every {people.duration(best['step_s'] * 1e9)}; bound by {best['bound']}."
            )
            numbers.append(("prefill of a prompt", people.duration(s["prefill_s"] * 1e9), f"{s['prompt']:,} tokens"))
    elif r["ranking"]:
        fits = "fits" if r["fits"] else "does not fit" if r["fits"] is False else "may fit"
        headline = (
            f"A step of {r['tokens_per_step']:,} tokens takes about {people.duration(r['predicted_ns'])} on "
            f"{r['devices']:,} × {r['hardware_name']} and {fits}; "
            f"{r['bound']} sets its lower bound."
        )
        if r["remedies"]:
            headline += f" Try {', '.join(r['remedies'][:-1])} or {r['remedies'][-1]}."
        numbers = [
            ("step to expect", people.duration(r["predicted_ns"]),
             f"between {people.duration(r['lower_ns'])} and {people.duration(r['upper_ns'])}"),
            ("MFU to expect", people.percent(r["mfu"]),
             f"{people.flops_per_s(r['flops_per_s_per_device'])} a device, {r['math_dtype']}{_reached(r['published'])}"),
            ("memory a device", people.size(r["memory_total"]), f"of {people.size(r['memory_bytes'])}"),
        ]  # fmt: skip
        if r["campaign"]:
            c = r["campaign"]
            money = "" if c["usd"] is None else f", {c['usd']:,.0f} USD"
            numbers.append(("training", f"{c['days']:,.1f} days", f"{c['device_hours']:,.0f} device-hours{money}"))
        if r["smell"]:
            rate = people.flops_per_s(r["smell"]["measured_tflops"] * TERA)
            numbers.append(("your rate", rate, f"a device: {r['smell']['verdict']}"))
    else:
        headline = f"No mesh of {r['devices'] or 0:,} × {r['hardware_name']} holds the model and its batch."
        numbers = [("fewest devices", people.count(r["fewest_devices"]), r["unfit"])]
    return {
        "title": f"{r['model']} on {r['hardware_name']}",
        "headline": headline,
        "numbers": numbers,
        "assumed": r["assumed"],
        "rows": plan_text.rows(r),
    }


def _reached(published: list[dict[str, Any]]) -> str:
    """What people reach on the part, to stand beside what is expected."""
    rates = sorted({round(training["flops_per_s"] / TERA) for training in published})
    if not rates:
        return ""
    return f"; people reach {rates[0]}" + (f" to {rates[-1]}" if len(rates) > 1 else "")


def _training_sections(r: dict[str, Any]) -> dict[str, Section]:
    if not r["ranking"]:
        return {}
    sections = {"memory": _memory_section(r), "time": _time_section(r)}
    if len(r["ranking"]) > 1:
        sections["meshes"] = _mesh_section(r)
    if r["scaling"] and len(r["scaling"]["points"]) > 1:
        sections["scaling"] = _scaling_section(r["scaling"], r["reachable_share"])
    return sections


def _figure(title: str, rows: pl.DataFrame, columns: list[Column], chart: alt.TopLevelMixin, alt_text: str) -> Figure:
    return Figure(title=title, rows=rows, columns=columns, chart=chart, alt=alt_text)


def _memory_section(r: dict[str, Any]) -> Section:
    rows = pl.DataFrame(
        [
            {"place": i, "part": words, "bytes": r["memory"][name], "said": people.size(r["memory"][name])}
            for i, (name, (words, _)) in enumerate(_MEMORY.items())
        ]
    )
    chart = (
        alt.Chart(rows)
        .mark_bar(height=40)
        .encode(
            x=alt.X("bytes:Q", title="bytes on the fullest device", axis=alt.Axis(labelExpr=theme.plain_axis("B"))),
            color=theme.colour(rows, "part", _MEMORY),
            order="place:Q",
            tooltip=["part:N", "said:N"],
        )
    )
    layers: list[alt.Chart] = [chart]
    if r["memory_bytes"]:
        capacity = pl.DataFrame({"bytes": [r["memory_bytes"]], "said": [f"capacity {people.size(r['memory_bytes'])}"]})
        rule = alt.Chart(capacity).mark_rule(strokeWidth=2, strokeDash=[5, 3]).encode(x="bytes:Q", tooltip="said:N")
        layers.append(rule)
    return Section(
        title="Memory by component",
        sentence=f"{people.size(r['memory_total'])} on the fullest device of {people.size(r['memory_bytes'])}.",
        figures=[
            _figure(
                "Memory of a device",
                rows,
                [Column("part", "component"), Column("bytes", "bytes", people.size)],
                alt.layer(*layers).properties(width="container", height=60),
                "Bytes by component: " + "; ".join(f"{p} {s}" for p, s in rows.select("part", "said").rows()) + ".",
            )
        ],
    )


def _time_section(r: dict[str, Any]) -> Section:
    # Compute at the rate that matrix products reach is what the prediction adds exposed communication to
    busy_ns = max(r["compute_ns"] / r["reachable_share"], r["hbm_ns"])
    rows = [("compute", busy_ns, "device"), ("optimizer", r["optimizer_ns"], "device")]
    rows += [("activations to the host and back", 2 * r["offload_ns"], "hidden")] if r["offload_ns"] else []
    rows += [("pipeline bubble", r["bubble_ns"] / r["reachable_share"], "device")] if r["bubble_ns"] else []
    for t in r["traffic"]:
        what = plan_text.traffic_text(t)
        rows += [(what, t["exposed_ns"], "exposed"), (what, t["total_ns"] - t["exposed_ns"], "hidden")]
    frame = pl.DataFrame(
        [{"what": what, "ns": round(ns), "how": _HIDING[how][0]} for what, ns, how in rows if ns], orient="row"
    )
    frame = theme.say(frame, "ns", people.duration, "said")
    order = list(dict.fromkeys(frame["what"]))
    chart = (
        alt.Chart(frame)
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y("what:N", sort=order, title=None, axis=alt.Axis(labelLimit=260)),
            x=alt.X("ns:Q", title="time in a step", axis=alt.Axis(labelExpr=theme.NS_AXIS)),
            color=theme.colour(frame, "how", _HIDING),
            tooltip=["what:N", "how:N", "said:N"],
        )
        .properties(width="container", height=28 * len(order))
    )
    return Section(
        title="Time by axis",
        sentence=f"What the step of {plan_text.mesh_text(r['mesh'])} is made of; hidden communication "
        "runs behind arithmetic and takes no time of its own.",
        figures=[
            _figure(
                "Time of a step",
                frame,
                [Column("what", "what"), Column("how", "how"), Column("ns", "time", people.duration)],
                chart,
                "Time by part: "
                + "; ".join(f"{w} {s} ({h})" for w, s, h in frame.select("what", "said", "how").rows()),
            )
        ],
    )


def _mesh_section(r: dict[str, Any]) -> Section:
    rows = pl.DataFrame(
        [
            {
                "mesh": plan_text.mesh_text(c["mesh"]),
                "predicted_ns": c["predicted_ns"],
                "mfu": c["mfu"],
                "memory_bytes": c["memory_total"],
                "bound": c["bound"],
                "how": plan_text.recipe_text(c),
                "said": people.duration(c["predicted_ns"]),
            }
            for c in r["ranking"]
        ]
    )
    chart = (
        alt.Chart(rows)
        .mark_bar(height={"band": 0.72}, color=theme.BLUE)
        .encode(
            y=alt.Y("mesh:N", sort=None, title=None, axis=alt.Axis(labelLimit=320)),
            x=alt.X("predicted_ns:Q", title="step to expect", axis=alt.Axis(labelExpr=theme.NS_AXIS)),
            tooltip=["mesh:N", "said:N", "how:N"],
        )
        .properties(width="container", height=28 * len(rows))
    )
    return Section(
        title="Best meshes",
        sentence=f"Of {r['tried']:,} meshes that divide the model and the batch, {r['fitting']:,} fit into memory.",
        figures=[
            _figure(
                "Expected step of the best meshes",
                rows,
                [
                    Column("mesh", "mesh"),
                    Column("predicted_ns", "step", people.duration),
                    Column("mfu", "MFU", people.percent),
                    Column("memory_bytes", "memory", people.size),
                    Column("bound", "bound by"),
                    Column("how", "how"),
                ],
                chart,
                "Steps: " + "; ".join(f"{m} {s}" for m, s in rows.select("mesh", "said").rows()) + ".",
            )
        ],
    )


def _scaling_section(s: dict[str, Any], reachable_share: float) -> Section:
    rows = []
    for p in s["points"]:
        # Nothing recomputed, nothing sent, at the rate that matrix products reach: no curve is below it
        ideal = p["predicted_ns"] * p["mfu"] / reachable_share
        mesh = plan_text.mesh_text(p["mesh"])
        for kind, ns in (("predicted", p["predicted_ns"]), ("ideal", ideal)):
            rows.append(
                {"devices": p["devices"], "ns": float(ns), "curve": _CURVE[kind][0], "mfu": p["mfu"], "mesh": mesh}
            )
    frame = theme.say(pl.DataFrame(rows), "ns", people.duration, "said")
    chart = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            x=alt.X("devices:Q", scale=alt.Scale(type="log", base=2), title="devices"),
            y=alt.Y(
                "ns:Q",
                scale=alt.Scale(type="log"),
                title="step",
                axis=alt.Axis(labelExpr=theme.powers_of_ten(theme.NS_AXIS)),
            ),
            color=theme.colour(frame, "curve", _CURVE),
            tooltip=["devices:Q", "curve:N", "said:N", "mesh:N"],
        )
        .properties(width="container", height=280)
    )
    limit = s["limit"]
    words = (
        f"From {limit:,} devices on, arithmetic is less than half of a step on any mesh: the strong-scaling limit."
        if limit
        else "Arithmetic can be more than half of a step up to the last point."
    )
    best = frame.filter(pl.col("curve") == _CURVE["predicted"][0])
    return Section(
        title="More devices, the same batch",
        sentence=words,
        figures=[
            Figure(
                title="Step of the best mesh",
                rows=best,
                columns=[
                    Column("devices", "devices", people.count),
                    Column("ns", "step", people.duration),
                    Column("mfu", "MFU", people.percent),
                    Column("mesh", "mesh"),
                ],
                chart=chart,
                alt="Steps: " + "; ".join(f"{d} devices {t}" for d, t in best.select("devices", "said").rows()) + ".",
            )
        ],
    )


def _serving_sections(s: dict[str, Any]) -> dict[str, Section]:
    if not s["points"]:
        return {}
    rows = pl.DataFrame(s["points"]).with_columns(
        step_ns=pl.col("step_s") * 1e9,
        said=pl.col("step_s").map_elements(lambda seconds: people.duration(seconds * 1e9), return_dtype=pl.String),
    )
    chart = (
        alt.Chart(rows)
        .mark_line(point=True, color=theme.BLUE)
        .encode(
            # From zero, as a range of a few per cent would look like a cliff; few labels, which do not touch
            x=alt.X(
                "step_ns:Q",
                title="a token of each sequence",
                scale=alt.Scale(zero=True),
                axis=alt.Axis(labelExpr=theme.NS_AXIS, tickCount=6, labelOverlap=True),
            ),
            y=alt.Y("tokens_per_s:Q", title="tokens a second"),
            order="batch:Q",
            tooltip=["batch:Q", "said:N", "tokens_per_s:Q", "bound:N"],
        )
        .properties(width="container", height=280)
    )
    return {
        "frontier": Section(
            title="Throughput against latency",
            sentence="Each point is a batch, the last one what fits beside the weights.",
            figures=[
                _figure(
                    "Decoding by batch",
                    rows,
                    [
                        Column("batch", "sequences", people.count),
                        Column("step_ns", "step", people.duration),
                        Column("tokens_per_s", "tokens/s", people.count),
                        Column("tokens_per_s_per_device", "tokens/s a device", people.count),
                        Column("bound", "bound by"),
                    ],
                    chart,
                    f"From batch 1 to {s['points'][-1]['batch']}, tokens a second rise and so does the step.",
                )
            ],
        )
    }
