"""When traces completed what they did together: what their clocks have in common."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Completions:
    """When traces completed what they did together: a row for each trace of each instance, those of one side by side."""

    instance: np.ndarray
    """Number of the instance from 0, ascending."""
    trace: np.ndarray
    """Number of the trace, ascending in an instance."""
    end_ns: np.ndarray
    """By the clock of the trace."""
    first: np.ndarray
    """Row of the first part of each instance."""
    traces: int

    @classmethod
    def of(cls, instance: np.ndarray, trace: np.ndarray, end_ns: np.ndarray, traces: int) -> "Completions":
        """Of the rows whose instance is not negative; the last completion counts where a trace has several in one."""
        rows = np.flatnonzero(instance >= 0)
        order = rows[np.lexsort((end_ns[rows], trace[rows], instance[rows]))]
        i, t = instance[order], trace[order]
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = (i[1:] != i[:-1]) | (t[1:] != t[:-1])
        order = order[last]
        _, number, parts = np.unique(instance[order], return_inverse=True, return_counts=True)
        order = order[parts[number] > 1]
        return cls._grouped(instance[order], trace[order], end_ns[order], traces)

    @classmethod
    def _grouped(cls, instance: np.ndarray, trace: np.ndarray, end_ns: np.ndarray, traces: int) -> "Completions":
        new = np.ones(len(instance), dtype=np.bool_)
        new[1:] = instance[1:] != instance[:-1]
        return cls(np.cumsum(new) - 1, trace, end_ns, np.flatnonzero(new), traces)

    @property
    def kind(self) -> np.ndarray:
        """Which set of traces each row's instance is of, by its first, its last and how many they are; from 0."""
        count = np.diff(np.append(self.first, len(self.trace)))
        key = (self.trace[self.first] * self.traces + self.trace[self.first + count - 1]) * (self.traces + 1) + count
        kinds: np.ndarray = np.unique(key, return_inverse=True)[1][self.instance]
        return kinds

    def thinned(self, most: int) -> "Completions":
        """At most so many instances of each set of traces, evenly over those that there are."""
        kind = self.kind[self.first]
        order = np.lexsort((self.end_ns[self.first], kind))
        _, start, count = np.unique(kind[order], return_index=True, return_counts=True)
        place = np.arange(len(order)) - np.repeat(start, count)
        size = np.repeat(count, count)
        kept = (size <= most) | (place * most // size != (place - 1) * most // size)
        chosen = np.zeros(len(self.first), dtype=np.bool_)
        chosen[order[kept]] = True
        rows = chosen[self.instance]
        return self._grouped(self.instance[rows], self.trace[rows], self.end_ns[rows], self.traces)

    def medians(self, values: np.ndarray) -> np.ndarray:
        """The median of the values of each instance."""
        ordered = values[np.lexsort((values, self.instance))]
        count = np.diff(np.append(self.first, len(values)))
        middle: np.ndarray = (ordered[self.first + (count - 1) // 2] + ordered[self.first + count // 2]) / 2
        return middle


def medians_by(values: np.ndarray, group: np.ndarray, mask: np.ndarray, groups: int) -> np.ndarray:
    """The median of the marked values of each group, 0 where it has none."""
    values, group = values[mask], group[mask]
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    start = np.cumsum(count) - count
    ordered = np.append(values[order], 0.0)
    last = len(values)
    low, high = (np.where(count > 0, start + place, last) for place in ((count - 1) // 2, count // 2))
    middle: np.ndarray = (ordered[low] + ordered[high]) / 2
    return middle
