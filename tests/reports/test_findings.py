"""The ledger of savings and the law that it keeps: each nanosecond of the typical step is promised once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.reports.test_finding_rules import BF16, HBM, US, event, op, stored, trace

from tracegap.ingest import store
from tracegap.ingest.store import open_store
from tracegap.models.ops import OpClass
from tracegap.reports import finding, findings, laws
from tracegap.reports.buckets import BUCKETS
from tracegap.reports.finding import Rule, Turn
from tracegap.reports.savings import NEEDED, Claim, Ledger, _Account, settle

NAMES = [b.name for b in BUCKETS]


def broken(con):
    """What breaks a law of savings."""
    told = ((law.name, laws.check(con, law)) for law in laws.LAWS if law.name.startswith("savings"))
    return {name: breach.first for name, breach in told if breach}


def test_every_file_of_the_folder_is_a_rule():
    files = {p.stem for p in Path(findings.__path__[0]).glob("*.py")} - {"__init__"}
    rules = finding.rules()
    assert rules.keys() == files
    assert len(rules) >= 50
    for kind, rule in rules.items():
        assert isinstance(rule, Rule), kind
        assert set(rule.draws) <= set(NAMES), kind


def account(*amounts, left=None):
    units = np.arange(len(amounts))
    return _Account(sum(amounts) if left is None else left, units, np.array(amounts, dtype=np.int64))


def test_what_is_claimed_is_gone():
    ledger = Ledger(device_steps=1, room=100, accounts={"idle_host": account(30, 50)})
    first = Claim(wanted={"idle_host": 40}, units=np.array([1]))
    second = Claim(wanted={"idle_host": 60}, units=np.array([0, 1]))
    settle(ledger, [first, second])
    assert first.granted == {"idle_host": 40}
    assert (second.granted, second.open) == ({"idle_host": 40}, 40)  # 30 of unit 0 and the 10 that are left of unit 1
    assert ledger.room == 20


def test_a_bucket_gives_no_more_than_it_has_although_its_pieces_do():
    # Two slow operations and one that beats its bound: pieces of 30 and 50, a bucket of 20.
    ledger = Ledger(device_steps=1, room=100, accounts={"kernel_inefficiency": account(30, 50, left=20)})
    claim = Claim(wanted={"kernel_inefficiency": 70}, units=np.array([0, 1]))
    settle(ledger, [claim])
    assert claim.granted == {"kernel_inefficiency": 20}


def test_a_negative_bucket_gives_nothing():
    ledger = Ledger(device_steps=1, room=100, accounts={"kernel_inefficiency": account(30, left=-5)})
    claim = Claim(wanted={"kernel_inefficiency": 30}, units=None)
    settle(ledger, [claim])
    assert (claim.granted, claim.open, ledger.room) == ({}, 0, 100)


def test_what_physics_needs_is_asked_for_last_and_within_the_gap():
    accounts = {"memory_bound": account(80), "idle_host": account(50)}
    ledger = Ledger(device_steps=1, room=60, accounts=accounts)
    fused = Claim(wanted={"memory_bound": 70}, units=None)
    idle = Claim(wanted={"idle_host": 50}, units=None)
    settle(ledger, [fused, idle])
    assert idle.granted == {"idle_host": 50}
    assert (fused.granted, fused.open) == ({"memory_bound": 10}, 70)


AMOUNTS = st.lists(st.integers(0, 10**9), min_size=0, max_size=6)
CLAIMS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2 * 10**9), max_size=3),
        st.one_of(st.none(), st.lists(st.integers(0, 8), max_size=5)),
    ),
    max_size=8,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.tuples(AMOUNTS, st.integers(-(10**9), 10**9))),
    CLAIMS,
    st.integers(-(10**9), 10**10),
)
def test_claims_never_add_to_more_than_there_is(pieces, asked, room):
    accounts = {name: account() for name in NAMES}
    accounts |= {name: account(*amounts, left=sum(amounts) + extra) for name, (amounts, extra) in pieces.items()}
    totals = {name: max(a.left, 0) for name, a in accounts.items()}
    before = {name: a.amounts.copy() for name, a in accounts.items()}
    ledger = Ledger(device_steps=1, room=room, accounts=accounts)
    claims = [Claim(wanted=w, units=None if u is None else np.array(u, dtype=np.int64)) for w, u in asked]
    settle(ledger, claims)
    for name in NAMES:
        drawn = sum(c.granted.get(name, 0) for c in claims)
        assert drawn <= totals[name]
        left = accounts[name].amounts
        assert (left >= 0).all()
        assert before[name].sum() - left.sum() == drawn  # what is granted is taken from the pieces
    assert sum(sum(c.granted.values()) for c in claims) <= max(room, 0)
    for claim in claims:
        assert all(0 < ns <= claim.wanted[name] for name, ns in claim.granted.items())
        assert sum(claim.granted.values()) <= claim.open
    if claims and room >= 10**10 - 1:
        assert sum(claims[0].granted.values()) == claims[0].open


def rule(sql, *draws, **more):
    return Rule(sentence="{alone_ns} {saves_ns}[[ {left_ns}]]", query=sql, draws=draws, **more)


@pytest.fixture
def con(tmp_path):
    with open_store(tmp_path / "s.duckdb") as connection:
        # 100 µs of a product, of which half is needed; 50 µs idle, 10 ns of them after the launch.
        stored(connection, trace(op(0, 100, dtype="bf16", flops=50 * US * BF16, bytes=0), op(150, 50, "custom")))
        yield connection


def test_the_turn_decides_who_claims_first_then_the_size(con):
    units = "(select list(unit) from typical_op where kernel_inefficiency_ns > 0) as units"
    chosen = {
        "rest": rule("select 50000 as saves_ns", "kernel_inefficiency", turn=Turn.REST),
        "group": rule(f"select 45000 as saves_ns, {units}", "kernel_inefficiency", turn=Turn.GROUP),
        "cause": rule(f"select 20000 as saves_ns, {units}", "kernel_inefficiency"),
        "larger": rule(f"select 24000 as saves_ns, {units}", "kernel_inefficiency"),
    }
    finding.find(con, "run", chosen)
    rows = con.execute("select kind, saves_ns, what from findings").fetchall()
    # 24 of 50 µs, 20, and the last 6; nothing is left to the rest, which says nothing then.
    assert rows == [
        ("larger", 24000, "24000 24000"),
        ("cause", 20000, "20000 20000"),
        ("group", 6000, "45000 6000 6000"),
    ]


def test_a_saving_below_the_least_is_no_finding(con):
    chosen = {
        "small": rule("select 1900 as saves_ns", "idle_host"),
        "large": rule("select 2100 as saves_ns", "idle_host"),
    }
    finding.find(con, "run", chosen)  # a hundredth of 200 µs
    assert con.execute("select kind from findings").fetchall() == [("large",)]


def test_a_finding_without_a_saving_stays_and_says_why_it_is_graded(con):
    chosen = {
        "unknown": rule("select null as saves_ns, 7 as x", "idle_host"),
        "graded": rule("select 40000 as saves_ns", "idle_host"),
        "given": rule("select 9000 as saves_ns, 'low' as severity", "kernel_inefficiency"),
    }
    chosen["unknown"] = Rule(sentence="{x}", query=chosen["unknown"].query, draws=("idle_host",))
    finding.find(con, "run", chosen)
    rows = con.execute("select kind, severity, saves_ns, what from findings order by kind").fetchall()
    assert rows == [
        ("given", "low", 9000, "9000 9000"),
        ("graded", "high", 40000, "40000 40000"),
        ("unknown", "info", None, "7"),
    ]


def test_configuration_keys_that_a_rule_points_at_are_those_of_the_run(con):
    con.execute("update runs set config = ?", ['{"ddp.bucket_cap_mb": 1, "seed": 2}']).fetchall()
    finding.find(con, "run", {"a": rule("select 9000 as saves_ns", "idle_host", config="BUCKET")})
    assert con.execute("select config_keys::varchar from findings").fetchall() == [('["ddp.bucket_cap_mb"]',)]


OPS = st.lists(
    st.tuples(
        st.sampled_from([c.value for c in OpClass]),
        st.integers(0, 60),  # pause before it, µs
        st.integers(1, 80),  # its length, µs
        st.one_of(st.none(), st.integers(0, 100)),  # of arithmetic, µs at peak
        st.one_of(st.none(), st.integers(0, 100)),  # of traffic
        st.sampled_from(["bf16", "fp32", None]),
        st.sampled_from(["7", "8"]),
        st.sampled_from([None, "[[64,512,512]]", "[[4096,1001],[1001,4096]]"]),
    ),
    min_size=1,
    max_size=25,
)
IDLE = st.lists(
    st.tuples(
        st.sampled_from(["idle_host", "idle_gap", "idle_sync"]),
        st.sampled_from(["operator", "copy", "allocation"]),
        st.integers(1, 10**5),
    ),
    max_size=4,
)


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(OPS, min_size=1, max_size=2), IDLE, st.integers(1, 3))
def test_savings_of_made_up_runs_keep_the_law(tmp_path_factory, ranks, causes, steps):
    traces = []
    for rank, drawn in enumerate(ranks):
        at, ops, comm = 10, [], []
        for i, (op_class, pause, length, math, memory, dtype, stream, shapes) in enumerate(drawn):
            at += pause
            name = "Memcpy HtoD (Pageable -> Device)" if op_class == "copy" else f"k{i % 3}"
            ops.append(
                op(at, length, op_class, name=name, stream=stream, dtype=dtype, shapes=shapes,
                   flops=None if math is None else math * US * BF16, bytes=None if memory is None else memory * US * HBM)
            )  # fmt: skip
            at += 0 if stream == "8" else length
            if op_class == "collective":
                comm.append(
                    {
                        "message_bytes": 10 ** (5 + i % 4),
                        "seq": len(comm),
                        "collective": ("all_reduce", "all_to_all")[i % 2],
                    }
                )
        length = at + 100
        marks = [(n, n * length // steps, length // steps) for n in range(steps)]
        host = [
            event(at / 2, 30, "op", "aten::_local_scalar_dense"),
            event(0, at, "annotation", "Optimizer.step#Adam.step"),
        ]
        traces.append(trace(*ops, rank=rank, world_size=len(ranks), comm=comm, steps=marks, host=host))
    with open_store(tmp_path_factory.mktemp("s") / "s.duckdb") as con:
        stored(con, *traces)
        assert broken(con) == {}
        for i, (cause, activity, ns) in enumerate(causes):  # also of more idle time than there is
            row = {
                "trace_id": "run0",
                "device_id": "0",
                "step": 0,
                "cause": cause,
                "activity": activity,
                "name": f"f{i}",
            }
            store.insert_row(con, "idle_causes", row | {"idle_ns": ns, "gaps": 1})
        finding.find(con, "run")
        assert broken(con) == {}


def test_savings_of_the_samples_keep_the_law(samples):
    with open_store(samples, read_only=True) as con:
        claiming = con.execute("select count(*) from findings where saves_ns > 0").fetchall()[0][0]
        assert claiming > 20
        assert broken(con) == {}


def test_what_physics_needs_is_as_the_waterfall_has_it():
    assert set(NEEDED) == {b.name for b in BUCKETS if b.group == "minimum"}
