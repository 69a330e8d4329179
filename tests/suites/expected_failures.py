"""Tests of the suites that are known to fail, by id, with the reason. They fail again as soon as they pass."""

from collections.abc import Mapping
from typing import Any

import pytest


class ExpectedFailures(dict[str, str]):
    """Reasons by test id."""

    def mark(self, value: Any, test_id: str) -> Any:
        """A parameter of a test, marked where it is known to fail."""
        marks = [pytest.mark.xfail(strict=True, reason=self[test_id])] if test_id in self else []
        return pytest.param(value, id=test_id, marks=marks)


_KNOWN: Mapping[str, str] = {}

EXPECTED_FAILURES = ExpectedFailures(_KNOWN)
