"""What the store is made of: tables, views, and views over rows that are kept in two parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its DuckDB type and what it means, unit included."""

    name: str
    type: str
    doc: str


def quoted(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def columns_of(spec: str) -> tuple[Column, ...]:
    """From lines of `name TYPE meaning`."""
    return tuple(Column(*line.strip().split(maxsplit=2)) for line in spec.strip().splitlines())


@dataclass(frozen=True, slots=True)
class Table:
    """A base table: one row is a `grain`."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    public: bool = True

    def ddl(self) -> str:
        """`CREATE TABLE` and its comments."""
        columns = ",\n  ".join(f"{c.name} {c.type}" for c in self.columns)
        return ";\n".join([f"CREATE TABLE {self.name} (\n  {columns}\n)", *_comments("TABLE", self)])

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]


@dataclass(frozen=True, slots=True)
class View:
    """A view with the columns of a table, made by `sql` of tables that stand before it."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    public: bool = True
    sql: str = ""

    def ddl(self) -> str:
        """`CREATE VIEW` and its comments."""
        return ";\n".join([f"CREATE VIEW {self.name} AS {self.sql}", *_comments("VIEW", self)])

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]


def _comments(kind: str, of: Table | View) -> Iterator[str]:
    yield f"COMMENT ON {kind} {of.name} IS {quoted(of.grain)}"
    for c in of.columns:
        yield f"COMMENT ON COLUMN {of.name}.{c.name} IS {quoted(c.doc)}"


FORM = "form_id"
"""Joins the rows of a `Split` to their forms."""


@dataclass(frozen=True, slots=True)
class Split:
    """A view over rows that are kept in two tables: what many of them have in common, and what each has of its own.

    DuckDB's time to store rows goes by the value, and long texts take ten times that of a number. So `<part>_forms` has
    every combination of texts once, with a number that is unique in the store, and `<part>_rows` numbers only.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    part: str
    """Begins the names of the two tables."""
    own: Mapping[str, str]
    """Columns that each row has for itself, with the types in which they are kept; the others are in common."""
    key: tuple[str, ...] = ()
    public: bool = True
    hidden: tuple[Column, ...] = field(default=())
    """In common too, but not in the view."""

    @property
    def names(self) -> list[str]:
        """Column names of the view in order."""
        return [c.name for c in self.columns]

    @property
    def forms(self) -> Table:
        """The table of what rows have in common."""
        number = Column(FORM, "INTEGER", "number within the store")
        common = tuple(c for c in self.columns if c.name not in self.own)
        grain = f"what many rows of {self.name} have in common"
        return Table(f"{self.part}_forms", grain, (number, *common, *self.hidden), key=(FORM,), public=False)

    @property
    def rows(self) -> Table:
        """The table of what each row has for itself."""
        number = Column(FORM, "INTEGER", f"what it has in common with others, a {self.part}_forms.{FORM}")
        own = tuple(Column(c.name, self.own[c.name], c.doc) for c in self.columns if c.name in self.own)
        grain = f"what a row of {self.name} has for itself"
        return Table(f"{self.part}_rows", grain, (number, *own), public=False)

    @property
    def view(self) -> View:
        """The two tables as one."""
        shown = ", ".join(
            f"f.{c.name}"
            if c.name not in self.own
            else f"r.{c.name}"
            if self.own[c.name] == c.type
            else f"cast(r.{c.name} as {c.type}) as {c.name}"
            for c in self.columns
        )
        sql = f"select {shown} from {self.part}_rows r join {self.part}_forms f using ({FORM})"
        return View(self.name, self.grain, self.columns, self.key, self.public, sql)
