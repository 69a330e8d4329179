"""What a comparison says, for pages and terminals, from `Comparison.as_dict()`."""

from typing import Any

from tracegap.reports import people


def verdict_words(c: dict[str, Any]) -> str:
    """The verdict in words: by how much and how certain."""
    before, delta = c["before_ns"], c["delta_ns"]
    if c["verdict"] == "same":
        return f"no difference that can be told from noise ({people.signed_duration(delta)}; {doubt(c)}{_perhaps(c)})"
    frac = abs(delta) / before if before else None
    return f"a step is {people.duration(abs(delta))} ({people.percent(frac)}) {c['verdict']} ({doubt(c)})"


def _perhaps(c: dict[str, Any]) -> str:
    """That there may be a difference all the same: the interval says so, but one of twenty such intervals errs."""
    low, high = c["interval_ns"] or (0, 0)
    return "; record more steps to be sure" if low > 0 or high < 0 else ""


def headline(c: dict[str, Any]) -> str:
    """The verdict, and what most of the difference is."""
    said = f"A step took {people.duration(c['before_ns'])} and takes {people.duration(c['after_ns'])} now: "
    said += f"{verdict_words(c)}."
    main = main_cause(c) if c["verdict"] != "same" else None
    if main is not None:
        said += f" {people.signed_duration(main['delta_ns'])} of it: {main['what']}."
    return said


def doubt(c: dict[str, Any]) -> str:
    """How certain the difference is."""
    if c["interval_ns"] is None:
        return "too few steps to say how certain"
    low, high = c["interval_ns"]
    return f"95% interval: {people.signed_duration(low)} to {people.signed_duration(high)}"


def title(side: dict[str, Any]) -> str:
    """Job, devices and number of steps of a side."""
    return str(side["title"])


def devices_differ(c: dict[str, Any]) -> str | None:
    """That the two sides ran on different devices; None where they did not."""
    before, after = c["before"]["devices"], c["after"]["devices"]
    return None if before == after else f"The devices differ: {before} before, {after} after."


def split(operation: dict[str, Any]) -> tuple[int, int] | None:
    """How much of an operation's change its number of calls makes, and how much its time a call, ns.

    None where the two pull in opposite directions: together they are the change, but neither is a part of it.
    """
    by_calls, by_time = operation["by_calls_ns"], operation["by_time_a_call_ns"]
    return (by_calls, by_time) if by_calls * by_time >= 0 else None


def main_cause(c: dict[str, Any]) -> dict[str, Any] | None:
    """The largest cause in the direction of the difference."""
    same_way = [k for k in c["causes"] if k["bucket"] != "rest" and k["delta_ns"] * c["delta_ns"] > 0]
    return max(same_way, key=lambda k: abs(k["delta_ns"]), default=None)


def first_fix(c: dict[str, Any]) -> tuple[str, int] | None:
    """What to undo first, and what that saves at most, ns; None where no configuration line explains it.

    Nothing is to be undone between different devices.
    """
    if devices_differ(c) is not None:
        return None
    changed = {line["key"]: line for line in c["config"]}
    for cause in sorted(c["causes"], key=lambda k: -k["delta_ns"]):
        keys = [k for k in cause["config"] if k in changed]
        if cause["delta_ns"] > 0 and keys and c["verdict"] == "slower":
            back = ", ".join(f"{k} back to {shown(changed[k]['before'])}" for k in keys)
            return back, int(cause["delta_ns"])
    return None


def shown(value: Any) -> str:
    """A configuration value; absent ones are named so."""
    return "(absent)" if value is None else str(value)
