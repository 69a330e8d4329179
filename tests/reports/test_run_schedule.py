"""Times of several traces on one clock, against the definition of the columns of `traces`."""

from fractions import Fraction

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.run_schedule import common, on_one_clock

CLOCKS = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(-(10**8), 10**8), st.floats(-1e-4, 1e-4)), min_size=1, max_size=4
)
BASE = 1_780_000_000 * 10**9


def unix_ns(t, clock):
    """What the columns say: t + origin + offset + drift t."""
    origin, offset, drift = clock
    return t + BASE + origin + offset + Fraction(drift) * t


@given(CLOCKS, st.integers(0, 10**11), st.integers(0, 10**11))
def test_equal_instants_stay_equal_and_the_clock_of_the_step_that_ends_last_stays_itself(clocks, end, t):
    rows = [
        {"device": i, "origin_ns": BASE + o, "offset_ns": shift, "drift": drift, "end_ns": end}
        for i, (o, shift, drift) in enumerate(clocks)
    ]
    devices = on_one_clock(pl.DataFrame(rows))
    at = common(devices.with_columns(t_ns=pl.lit(t)), ["t_ns"])["t_ns"].to_list()
    last = max(range(len(clocks)), key=lambda i: (unix_ns(end, clocks[i]), -i))
    near = [i for i in range(len(clocks)) if abs(unix_ns(end, clocks[i]) - unix_ns(end, clocks[last])) <= 1]
    assert any(devices["shift_ns"][i] == 0 and devices["stretch"][i] == 0 and at[i] == t for i in near)
    own = next(i for i in near if devices["shift_ns"][i] == 0 and devices["stretch"][i] == 0)
    for i, got in enumerate(at):
        # As many Unix ns after the same t of the clock that is kept, by that clock.
        wanted = t + (unix_ns(t, clocks[i]) - unix_ns(t, clocks[own])) / (1 + Fraction(clocks[own][2]))
        assert abs(got - wanted) <= 2
