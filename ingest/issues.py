"""What a reader lost, repaired or doubts, counted: rows of `traces.diagnostics`, never a log line."""

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["info", "data_loss", "error"]


@dataclass(slots=True)
class Issue:
    """One kind of trouble in one file."""

    code: str
    """Stable word, such as `truncated`, `negative_duration`, `no_launch`."""
    severity: Severity
    count: int
    where: str
    """Byte, record or event of the first occurrence."""
    message: str
    """A sentence for a person: what it is and what to do."""


@dataclass(slots=True)
class Issues:
    """Collects issues of one file; the same code is counted, and its first place kept."""

    by_code: dict[str, Issue] = field(default_factory=dict)

    def add(self, code: str, message: str, *, where: str = "", count: int = 1, severity: Severity = "info") -> None:
        """Counts `count` more of `code`; `message` and `where` of the first one stay."""
        if count <= 0:
            return
        if code in self.by_code:
            self.by_code[code].count += count
        else:
            self.by_code[code] = Issue(code, severity, count, where, message)

    @property
    def lost_data(self) -> bool:
        """Whether something of the file is missing from what was read."""
        return any(i.severity != "info" for i in self.by_code.values())

    def rows(self) -> list[dict[str, Any]]:
        """As stored: `[{"code", "severity", "count", "where", "message"}]`."""
        return [
            {"code": i.code, "severity": i.severity, "count": i.count, "where": i.where, "message": i.message}
            for i in self.by_code.values()
        ]
