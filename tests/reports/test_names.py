"""Pages of different runs have different names, and none leaves the folder."""

from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from tracegap.reports.names import page_name

RUN = st.text(st.sampled_from("ab/-_. ü~"), min_size=1, max_size=6)


def test_plain_names_stay_readable():
    assert page_name("llama-8b/2026-11-30") == "llama-8b--2026-11-30.html"
    assert page_name("index") != "index.html"


@given(RUN, RUN)
def test_names_do_not_collide_or_leave_the_folder(a, b):
    assert (page_name(a) == page_name(b)) == (a == b)
    assert PurePosixPath(page_name(a)).name == page_name(a)
    assert not page_name(a).startswith(".")


@given(st.text(min_size=1))
def test_any_name_is_a_file_name(run):
    assert page_name(run).isascii()
    assert "/" not in page_name(run)
