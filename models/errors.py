"""The root of all errors of tracegap, and those that pure code raises."""


class TracegapError(Exception):
    """Something the user can act on: the message says what, where and what to do. Printed without a traceback."""

    retryable = False
    """Whether doing the same again may succeed (a lock, a network); a bad file never is."""


class UnknownChip(TracegapError):
    """A chip that the catalogue does not have."""


class NoFormula(TracegapError):
    """No formula is known for an operation or a quantity."""


class BadShape(TracegapError):
    """Shapes that do not fit the operation they are said to be of."""


class BadInput(TracegapError):
    """An input of a formula that is out of its range, or for which there is no value."""
