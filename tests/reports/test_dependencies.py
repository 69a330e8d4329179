"""What waits for what, on schedules of a few operations that are worked out by hand (all times in ns)."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegap.reports import dependencies
from tracegap.reports.instants import INPUTS, OPS, POINTS, RANK_OF_WHY, Why

MAIN, AUTOGRAD = 0, 1
NO_INPUT = pl.DataFrame(schema=INPUTS)


def op(stream, start, end, launch=None, **rest):
    """An operation; `name` stands for its key."""
    return {
        "device": 0, "trace": 0, "stream": stream, "is_async": False, "is_core": False, "on_cpu": False, "step": 1,
        "start_ns": start, "end_ns": end, "launch_ns": launch,
        "thread": None if launch is None else MAIN, "instance": None, "likeness": None,
        "predicted_ns": None, "key": rest.pop("name", 7),
    } | rest  # fmt: skip


def call(start, end, *, sync=False, thread=MAIN, trace=0):
    return {"trace": trace, "thread": thread, "start_ns": start, "end_ns": end, "is_sync": sync}


def build(ops, calls=()):
    return dependencies.build(pl.DataFrame(ops, schema=OPS), pl.DataFrame(list(calls), schema=POINTS), NO_INPUT)


def waits_of(schedule, instant):
    """What an instant waited for: (why, instant)."""
    edge = schedule.graph.binding(RANK_OF_WHY)[instant]
    return Why(schedule.graph.edges.why[edge]), int(schedule.graph.edges.src[edge])


def changed(schedule, why, of, lag):
    """The instants with another delay of the edges of a kind of an operation or call."""
    lags = schedule.graph.edges.lag_ns.copy()
    lags[(schedule.graph.edges.why == why) & (schedule.graph.edges.of == of)] = lag
    return schedule.graph.replay(lags)


def test_an_operation_waits_for_its_stream_or_for_its_launch_whichever_is_later():
    # The second is queued behind the first, the third is launched when the stream has long been free.
    ops = [op(1, 5_000, 20_000, 0), op(1, 20_600, 30_000, 3_000), op(1, 95_000, 99_000, 90_000)]
    made = build(ops, [call(0, 3_000), call(3_000, 6_000), call(90_000, 93_000)])
    assert waits_of(made, made.begin[0]) == (Why.LAUNCH, made.call_begin[0])
    assert waits_of(made, made.begin[1]) == (Why.STREAM, made.end[0])
    assert waits_of(made, made.begin[2]) == (Why.LAUNCH, made.call_begin[2])
    # The first takes 1 us: the second begins 5 us after its launch at 3 us, the third as before.
    at = changed(made, Why.RUN, 0, 1_000)
    assert at[made.begin].tolist() == [5_000, 8_000, 95_000]
    # It takes 100 us: the third waits for the stream, and is unexplained by nothing.
    at = changed(made, Why.RUN, 0, 100_000)
    assert at[made.begin].tolist() == [5_000, 105_600, 115_600]


def test_a_synchronisation_returns_after_what_was_launched_before_it():
    ops = [op(1, 5_000, 60_000, 0), op(1, 85_000, 90_000, 80_000)]
    made = build(ops, [call(0, 3_000), call(4_000, 66_000, sync=True), call(80_000, 83_000)])
    assert waits_of(made, made.call_end[1]) == (Why.RETURN, made.end[0])
    assert waits_of(made, made.call_begin[2]) == (Why.HOST, made.call_end[1])
    # The kernel takes 5 us instead of 55: everything after it comes 50 us earlier.
    at = changed(made, Why.RUN, 0, 5_000)
    assert (at[made.call_end[1]], at[made.begin[1]], at[made.end[1]]) == (16_000, 35_000, 40_000)


def test_a_thread_goes_on_where_another_one_of_the_process_fell_silent():
    ops = [op(1, 5_000, 6_000, 0), op(1, 405_000, 406_000, 400_000, thread=AUTOGRAD), op(1, 805_000, 806_000, 800_000)]
    made = build(ops, [call(0, 3_000), call(400_000, 403_000, thread=AUTOGRAD), call(800_000, 803_000)])
    by_start = made.points["start_ns"].to_list()
    first, second, third = (by_start.index(t) for t in (0, 400_000, 800_000))
    assert waits_of(made, made.call_begin[second]) == (Why.HANDOVER, made.call_end[first])
    assert waits_of(made, made.call_begin[third]) == (Why.HANDOVER, made.call_end[second])


def test_threads_that_work_side_by_side_do_not_wait_for_each_other():
    calls = [call(10_000 * i, 10_000 * i + 3_000, thread=i % 2) for i in range(20)]
    made = build([op(1, 5_000, 6_000, 0)], calls)
    assert Why.HANDOVER not in made.graph.edges.why


def rank_ops(trace, starts, ends, **rest):
    return [
        op(trace, s, e, trace=trace, device=trace, instance=i, likeness=1, **rest)
        for i, (s, e) in enumerate(zip(starts, ends, strict=True))
    ]


def test_a_collective_begins_when_the_last_rank_arrives():
    made = build([*rank_ops(0, [1_000], [9_000]), *rank_ops(1, [4_000], [9_000])])
    why, arrival = waits_of(made, made.end[0])
    assert why == Why.TRANSFER
    assert waits_of(made, arrival) == (Why.ARRIVAL, made.begin[1])
    lags = made.graph.edges.lag_ns.copy()
    lags[made.graph.edges.dst == made.begin[1]] = 0  # rank 1 comes first now, rank 0 last: at 1000
    at = made.graph.replay(lags)
    assert at[made.end].tolist() == [6_000, 6_000]


def test_a_send_that_is_over_before_the_receive_begins_did_not_wait_for_it():
    made = build([*rank_ops(0, [1_000], [2_000]), *rank_ops(1, [4_000], [5_000])])
    assert waits_of(made, made.end[0])[0] == Why.RUN
    assert waits_of(made, made.end[1])[0] == Why.TRANSFER


def test_a_stream_that_waits_for_another_one_is_seen_and_holds_where_it_is_hidden():
    # Stream 2's operation `9` waits for `8` of stream 1 in steps 1 and 2; in step 3 it is ready only later.
    ops = []
    for step, wait in ((1, 1_500), (2, 1_500), (3, 40_000)):
        t = step * 1_000_000
        ops += [op(1, t, t + 100_000, t - 50_000, name=8, step=step)]
        ops += [op(2, t + 100_000 + wait, t + 150_000 + wait, t - 45_000, name=9, step=step)]
    calls = [call(o["launch_ns"], o["launch_ns"] + 3_000) for o in ops]
    made = build(ops, calls)
    assert waits_of(made, made.begin[1]) == (Why.CROSS, made.end[0])
    at = changed(made, Why.RUN, 0, 10_000)
    assert at[made.begin[1]] == 1_000_000 + 10_000 + 1_500
    # In step 3 the gap of 40 us has no reason and stays, beyond the 1.5 us that the others show.
    at = changed(made, Why.RUN, 4, 300_000)
    assert at[made.begin[5]] == 3_000_000 + 300_000 + 40_000


def test_an_asynchronous_collective_that_the_core_never_waited_for_took_no_longer_than_its_equals():
    # The core runs 100 us beside the first (hidden), waits 20 us for the second of the same kind (which took 50 us).
    core = [
        op(0, 100, 100_000, is_core=True),
        op(0, 100_200, 130_000, is_core=True),
        op(0, 150_200, 160_000, is_core=True),
    ]
    beside = [
        op(1, 0, 100_100, is_async=True, instance=0, likeness=3),
        op(1, 100_150, 150_150, is_async=True, instance=1, likeness=3),
    ]
    other = [
        op(2, 0, 100_100, is_async=True, instance=0, likeness=3, device=1, trace=1),
        op(2, 100_150, 150_150, is_async=True, instance=1, likeness=3, device=1, trace=1),
    ]
    made = build([*core, *beside, *other])
    assert (made.graph.replay() == made.graph.time_ns).all()
    took = dependencies.own_transfer_ns(made.ops, np.array([0, 0, 0, 0, 100_150, 0, 100_150]))
    assert took[3] == 50_000
    assert took[4] == 50_000
    # Were the first kernel 10 us long, the core would wait for the collective: until 50 us, not until 100.
    at = changed(made, Why.RUN, 0, 10_000)
    assert at[made.end[3]] == 50_000


@st.composite
def device_schedules(draw):
    """Operations on some streams of two ranks, launched before they begin, with synchronisations and collectives."""
    ops, calls = [], []
    for trace in range(2):
        host = 0
        free = {0: 0, 1: 0}
        for i in range(draw(st.integers(1, 12))):
            host += draw(st.integers(1, 30_000))
            stream = draw(st.integers(0, 1))
            start = max(host + draw(st.integers(0, 9_000)), free[stream] + draw(st.integers(0, 2_000)))
            end = start + draw(st.integers(0, 50_000))
            free[stream] = end
            calls.append(call(host, host + draw(st.integers(0, 9_000)), trace=trace, thread=trace))
            instance = i if draw(st.booleans()) else None
            kind = {
                "trace": trace,
                "device": trace,
                "thread": trace,
                "instance": instance,
                "name": draw(st.integers(0, 2)),
            }
            ops.append(op(10 * trace + stream, start, end, host, **kind))
            if draw(st.booleans()):
                begin = calls[-1]["end_ns"]
                host = max(begin, max(free.values()) if draw(st.booleans()) else begin) + draw(st.integers(1, 9_000))
                calls.append(call(begin + 1, max(host, begin + 1), sync=True, trace=trace, thread=trace))
                host = calls[-1]["end_ns"]
    return ops, calls


@settings(max_examples=60)
@given(device_schedules())
def test_whatever_the_schedule_the_graph_gives_it_back_and_shorter_kernels_make_nothing_later(given_):
    made = build(*given_)
    assert (made.graph.replay() == made.graph.time_ns).all()
    starts = pl.DataFrame(given_[0], schema=OPS)["start_ns"].to_numpy()
    assert (made.graph.time_ns[made.begin] == starts).all()
    lags = made.graph.edges.lag_ns.copy()
    run = made.graph.edges.why == Why.RUN
    lags[run] //= 2
    assert (made.graph.replay(lags) <= made.graph.time_ns).all()
