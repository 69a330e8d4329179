"""The suites judge as they say: whole numbers exactly, fractions to a millionth, and what they do not know by name."""

import re
from typing import Any

import pytest
from tests.suites.broken import RULES, wrong
from tests.suites.expected_failures import ExpectedFailures
from tests.suites.facts import of_fact
from tests.suites.measures import UnknownKey, in_form, of_key
from tests.suites.same import difference


@pytest.mark.parametrize(
    ("measured", "expected"),
    [(3, 3), ("a", "a"), (None, None), (0.5000001, 0.5), (2, 2.0), ([1, None], [1, None]), ({"a": [1]}, {"a": [1]})],
)
def test_same(measured: Any, expected: Any) -> None:
    assert difference(measured, expected) is None


@pytest.mark.parametrize(
    ("measured", "expected", "where"),
    [
        (4, 3, ""),
        (3.0000001, 3, ""),
        (0.500001, 0.5, ""),
        (0, None, ""),
        (None, 0, ""),
        (1, True, ""),
        ([1], [1, 2], ""),
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ({"a": [1, 2]}, {"a": [1, 3]}, "/a/1"),
    ],
)
def test_different(measured: Any, expected: Any, where: str) -> None:
    found = difference(measured, expected)
    assert found is not None
    assert found.startswith(f"{where}:")


def test_an_unknown_word_fails_by_name() -> None:
    for known in (of_key, of_fact):
        with pytest.raises(UnknownKey, match="phase_of_the_moon"):
            known("phase_of_the_moon")
    with pytest.raises(UnknownKey, match="sings"):
        wrong(None, "a reader that sings", {})  # type: ignore[arg-type]
    with pytest.raises(UnknownKey, match="phase_after_join"):
        of_key("phase_after_join")
    assert of_key("kernels_after_join") is of_key("kernels")


def test_rules_of_broken_files_are_told_apart() -> None:
    for words in ("clear error: empty file", "clear error: no traceEvents", "either a clear error or 220 events"):
        assert sum(bool(re.search(pattern, words)) for pattern, _ in RULES) == 1


def test_lists_come_in_the_form_that_is_asked_for() -> None:
    assert in_form(["a", "b"], ["x"]) == ["a", "b"]
    assert in_form(["a", "b"], 7) == 2
    assert in_form([], True) is False


def test_expected_failures_are_marked() -> None:
    marked = ExpectedFailures({"case::key": "why"})
    assert marked.mark(1, "case::key").marks[0].kwargs == {"strict": True, "reason": "why"}
    assert not marked.mark(1, "case::other").marks
