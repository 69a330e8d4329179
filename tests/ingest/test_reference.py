from pathlib import Path

import pytest

from tracegap.ingest import reference
from tracegap.models import hardware, quantities

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_as_fresh_as_the_code(name: str) -> None:
    assert (DOCS / name).read_text() == reference.PAGES[name](), "run `make docs`"


def test_every_formula_stands_under_a_subject() -> None:
    page = reference.formulas_page()
    for name, code in quantities.formulas():
        letter = code[0] if code[0].isalpha() else code
        assert letter in reference.TOPICS, f"{name} {code}"
        assert f"| {name} | {code} |" in page


def test_every_formula_and_part_has_words() -> None:
    for function in quantities.formulas().values():
        assert function.__doc__, function
    assert all(f"| {chip} |" in reference.chips_page() for chip in hardware.catalogue())
