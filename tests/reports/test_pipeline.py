"""A pipeline of 4 stages whose every wait is worked out on paper, from Kineto files of a few KB a rank.

GPipe, p = 4 stages, m = 4 microbatches; a forward pass takes F = 1 ms, a backward pass B = 2 ms, a message c = 0.1 ms from the
moment at which both ends are there. Each receive is posted when the pass before the one that needs it begins (the first
one when the rank has nothing else to do), so only the first receive of either direction is ever waited for:

- stage s can begin its first forward pass s (F + c) after stage 0: it waits s (F + c) - c for the sender, then c passes;
- its forward passes end m F later. The first gradient reaches it when the p - 1 - s stages behind it have done one forward
  and one backward pass more, and both messages: (p - 1 - s) (F + B + 2c) later, of which the last c passes.

In step 1 all stages begin together. In step 2 stage s begins to wait when its step 1 is over, s (B + c) before stage 0 ends
its own and goes on: that much longer. So in step 2 every stage waits (p - 1) (F + B + 2c) in all, messages included; without
them it would be (p - 1) (F + B) for everyone, the formula.

Of each wait the last c passes in the transfer. And while it begins to wait, a rank still sends what its last pass made, for
c: two operations share that time, so c / 2 of it is the send's (but for the first receive of step 1, before which there is
no pass). What is waiting for the other stage is the rest.
"""

import json
from fractions import Fraction
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracegap.ingest.pipeline import ingest_paths
from tracegap.ingest.store import open_store
from tracegap.models.schedules import SCHEDULES
from tracegap.reports import join, pipeline_shape, run_schedule, what_if

P, M = 4, 4
F, B, C = 1_000_000, 2_000_000, 100_000
BEGIN = 5_000_000
"""Device time of the first step; the host has launched everything by then."""
COMPUTE, AHEAD, BACK, SEND = 7, 20, 21, 22


def passes(stage, step):
    """Begin of each forward and backward pass of a stage, and since when it has nothing to do, ns since BEGIN."""
    length = (P - 1) * (F + B + 2 * C) + M * (F + B)  # of stage 0, which sets the pace
    origin = (step - 1) * length
    forward = [origin + stage * (F + C) + k * F for k in range(M)]
    last_forward = origin + (P - 1) * (F + C) + M * F
    backward = [last_forward + (P - 1 - stage) * (B + C) + k * B for k in range(M)]
    free = 0 if step == 1 else origin - stage * (B + C)
    return forward, backward, free


def operations(stage, steps=(1, 2)):
    """(stream, name, start, end, step, message) of a stage; a message is (call, other stage)."""
    out = []
    for step in steps:
        forward, backward, free = passes(stage, step)
        for begins, source, target, stream, takes in (
            (forward, stage - 1, stage + 1, AHEAD, F),
            (backward, stage + 1, stage - 1, BACK, B),
        ):
            posted = [free if takes == F else forward[-1] + F, *begins]
            for k, begin in enumerate(begins):
                if 0 <= source < P:
                    out.append((stream, "recv", posted[k], begin, step, ("recv", source)))
                out.append((COMPUTE, "pass", begin, begin + takes, step, None))
                if 0 <= target < P:
                    out.append((SEND, "send", begin + takes, begin + takes + C, step, ("send", target)))
    return sorted(out, key=lambda op: op[2])


def event(cat, name, track, span, **args):
    times = {"ts": (BEGIN + span[0]) / 1000, "dur": (span[1] - span[0]) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": track[0], "tid": track[1], **times, "args": args}


def write_rank(path, stage):
    """A Kineto file: the host marks both steps and launches everything a microsecond apart before the device begins."""
    mark = {1: (-4_900_000, -2_500_000), 2: (-2_500_000, -100_000)}
    events = [event("user_annotation", f"ProfilerStep#{n}", (100, 100), times) for n, times in mark.items()]
    launched = {1: mark[1][0] + 1_000, 2: mark[2][0] + 1_000}
    for i, (stream, name, start, end, step, message) in enumerate(operations(stage), start=1):
        launched[step] += 10_000
        launch = launched[step]
        events.append(event("cuda_runtime", "cudaLaunchKernel", (100, 100), (launch, launch + 1_000), correlation=i))
        args = {"stream": stream, "device": 0, "correlation": i}
        if message:
            call, other = message
            kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
            args |= {
                "Collective name": call, "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "BFloat16", "Group size": P,
                "Process Group Name": "pp", "Process Group Ranks": str(list(range(P))),
                "Dst Rank" if call == "send" else "Src Rank": other,
            }  # fmt: skip
        else:
            kernel = f"stage_{name}_kernel"
        events.append(event("kernel", kernel, (0, stream), (start, end), **args))
    info = {"rank": stage, "world_size": P, "backend": "nccl"}
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132}]
    head = {"schemaVersion": 1, "deviceProperties": properties, "distributedInfo": info}
    path.write_text(json.dumps(head | {"traceEvents": events}))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("pipeline")
    for stage in range(P):
        write_rank(folder / f"rank{stage}.pt.trace.json", stage)
    with open_store(folder / "store.duckdb") as con:
        (run_id,) = {r.run_id for r in ingest_paths(con, [folder])}
        join.evaluate(con, run_id)
        yield con, run_id


def waited_ns(stage, step):
    """How long each of its first receives lasts (see above): that of the activations, that of the gradients; 0 = none."""
    activations = stage * (F + C) + (stage * (B + C) if step == 2 else 0)
    return activations, (P - 1 - stage) * (F + B + 2 * C)


def bubble_ns(stage, step):
    """What of them is waiting for other stages."""
    activations, gradients = waited_ns(stage, step)
    sends_beside = (C // 2 if activations and step == 2 else 0) + (C // 2 if gradients else 0)
    return activations + gradients - (C if activations else 0) - (C if gradients else 0) - sends_beside


def last_send_ns(stage, step):
    """The last window ends when the last gradient is sent; others, when the next step's receive is posted before."""
    return C if stage and step == 2 else 0


@pytest.mark.parametrize("stage", range(P))
def test_idle_pipeline_is_what_it_is_on_paper(pipeline, stage):
    con, run_id = pipeline
    rows = con.execute(
        "select step, idle_pipeline_ns, unmodelled_compute_ns, wall_ns from step_gap where run_id = ? and rank = ? order by step",
        [run_id, stage],
    ).fetchall()
    busy = M * (F + B)
    walls = [busy + sum(waited_ns(stage, step)) + last_send_ns(stage, step) for step in (1, 2)]
    assert rows == [(step, bubble_ns(stage, step), busy, walls[step - 1]) for step in (1, 2)]


def test_the_bubble_is_told_beside_the_formula(pipeline):
    con, run_id = pipeline
    rows = con.execute(
        """select rank, stage, stages, microbatches, schedule, bubble_ns, busy_ns, bubble_over_busy_frac, plain_over_busy_frac
           from pipeline_bubbles where run_id = ? and step = 2 order by rank""",
        [run_id],
    ).fetchall()
    busy = M * (F + B)
    assert rows == [
        (stage, stage, P, M, None, bubble_ns(stage, 2), busy, bubble_ns(stage, 2) / busy, (P - 1) / M)
        for stage in range(P)
    ]
    # All of the waiting less the messages on its way is the formula.
    for stage in range(P):
        assert Fraction(sum(waited_ns(stage, 2)) - (P - 1) * 2 * C, busy) == Fraction(P - 1, M)
    told = con.execute("select distinct told_by from pipeline_bubbles").fetchall()
    assert len(told) == 1
    assert "with so few microbatches GPipe and 1F1B are alike" in told[0][0]


def test_without_the_bubble_a_stage_takes_its_passes_and_its_first_messages(pipeline):
    con, run_id = pipeline
    run = run_schedule.load(con, run_id, 2)
    assert (run.schedule.graph.replay() == run.schedule.graph.time_ns).all()
    after = run.walls_ns(run.schedule.graph.replay(what_if.BUBBLE.lags(run)))
    first = [((s > 0) + (s < P - 1)) * C for s in range(P)]
    assert after.tolist() == [M * (F + B) + first[s] + last_send_ns(s, 2) for s in range(P)]


def test_faster_passes_shorten_the_bubble_too(pipeline):
    # By subtracting, half the passes would save m (F + B) / 2; the bubble is made of passes as well.
    con, run_id = pipeline
    run = run_schedule.load(con, run_id, 2)
    answer = what_if.answer(run, what_if.times(0.5, "passes", lambda r: what_if.chosen(r, None)))
    last = sum(last_send_ns(s, 2) for s in range(P)) // P
    assert answer.before_ns == (P - 1) * (F + B + 2 * C) + M * (F + B) + last
    assert answer.after_ns == (P - 1) * ((F + B) // 2 + 2 * C) + M * (F + B) // 2 + last


def messages_of(order):
    """Messages of a first stage (rank 0) that sends (s) and receives (r) in this order, and of the one behind it."""
    rows = [
        (rank, 1 - rank, (what == "s") == (rank == 0), 10 * i, 10 * i + 5)
        for i, what in enumerate(order)
        for rank in (0, 1)
    ]
    return pl.DataFrame(rows, schema=pipeline_shape.MESSAGES, orient="row")


@pytest.mark.parametrize(("order", "schedule"), [("ssssrrrr", "gpipe"), ("ssrsrsrr", "1f1b"), ("srsrsrsr", None)])
def test_the_schedule_is_recognised_by_what_is_sent_before_a_gradient_comes_back(order, schedule):
    shape = pipeline_shape.recognise(messages_of(order), {}, {})
    assert (shape.stages, shape.microbatches, shape.schedule) == (2, 4, schedule)
    assert shape.stage_of == {0: 0, 1: 1}
    assert shape.plain_over_ideal == 1 / 4


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(2, 64), st.integers(1, 512))
def test_a_configuration_names_what_messages_do_not_tell(schedule, stages, microbatches):
    config = {"pipeline.schedule": schedule.upper().replace("_", "-"), "pipeline.num_microbatches": microbatches}
    shape = pipeline_shape.recognise(pl.DataFrame(schema=pipeline_shape.MESSAGES), {"pipeline": stages}, config)
    assert shape.schedule == schedule
    assert shape.plain_over_ideal == (stages - 1) / microbatches
    assert shape.schedule_over_ideal == SCHEDULES[schedule].bubble_over_ideal(stages, microbatches, 1)


def test_two_pipelines_side_by_side_and_a_ring():
    rows = [(a, b, True, 0, 5) for a, b in ((0, 1), (2, 3))] + [(b, a, False, 0, 5) for a, b in ((0, 1), (2, 3))]
    shape = pipeline_shape.recognise(pl.DataFrame(rows, schema=pipeline_shape.MESSAGES, orient="row"), {}, {})
    assert (shape.stages, shape.stage_of) == (2, {0: 0, 1: 1, 2: 0, 3: 1})
    ring = [(a, (a + 1) % 3, True, 0, 5) for a in range(3)] + [((a + 1) % 3, a, False, 0, 5) for a in range(3)]
    shape = pipeline_shape.recognise(pl.DataFrame(ring, schema=pipeline_shape.MESSAGES, orient="row"), {}, {})
    assert (shape.stages, shape.plain_over_ideal) == (None, None)
    assert "no chain" in shape.told_by
    assert pipeline_shape.recognise(pl.DataFrame(schema=pipeline_shape.MESSAGES), {"data": 8}, {}) is None
