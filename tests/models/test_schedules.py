"""Pipeline schedules against a simulation that runs each pass as soon as its stage is free and its input is there."""

import pytest

from tracegap.models import schedules

FORWARD, BACKWARD = 1, 2


def order(name, stage, p, m):
    """Passes of a stage in the order of the schedule: ("f" or "b", microbatch)."""
    warm = m if name == "gpipe" else min(p - stage - 1, m)
    passes = [("f", i) for i in range(warm)]
    for i in range(m - warm):
        passes += [("f", warm + i), ("b", i)]
    return passes + [("b", i) for i in range(m - warm, m)]


def simulate(name, p, m):
    """Makespan, and the most microbatches that the first stage keeps."""
    queues = [order(name, stage, p, m) for stage in range(p)]
    free, done = [0] * p, {}
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, i = queue[0]
                before = ("f", i, stage - 1) if kind == "f" else ("b", i, stage + 1)
                if kind == "b" and stage == p - 1:
                    before = ("f", i, stage)
                if 0 <= before[2] < p and before not in done:
                    break
                start = max(free[stage], done.get(before, 0))
                free[stage] = done[kind, i, stage] = start + (FORWARD if kind == "f" else BACKWARD)
                queue.pop(0)
    kept = most = 0
    for kind, _ in order(name, 0, p, m):
        kept += 1 if kind == "f" else -1
        most = max(most, kept)
    return max(free), most


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 4), (2, 2), (4, 4), (4, 16), (8, 9), (8, 32)])
def test_the_bubble_and_what_is_kept_are_those_of_a_simulation(name, p, m):
    makespan, kept = simulate(name, p, m)
    schedule = schedules.get(name)
    busy = m * (FORWARD + BACKWARD)
    assert makespan == pytest.approx(busy * (1 + schedule.bubble_over_ideal(p, m, 1)))
    assert kept == schedule.in_flight(p, m, 1, 0)


def interleaved(rank, p, m, v):
    """Passes of a rank as Megatron-LM orders them: groups of p microbatches through each of its v chunks in turn."""
    work = [(k // (p * v) * p + k % p, k % (p * v) // p) for k in range(m * v)]
    forward = [("f", i, chunk) for i, chunk in work]
    backward = [("b", i, v - 1 - chunk) for i, chunk in work]
    warm = min((p - rank - 1) * 2 + (v - 1) * p, m * v)
    passes = forward[:warm]
    for pair in zip(forward[warm:], backward, strict=False):
        passes += pair
    return passes + backward[m * v - warm :]


@pytest.mark.parametrize(
    ("p", "m", "v"), [(2, 2, 2), (2, 8, 3), (4, 4, 2), (4, 16, 2), (4, 8, 4), (16, 16, 8), (8, 32, 4)]
)
def test_interleaving_keeps_on_every_rank_what_a_simulation_keeps(p, m, v):
    queues = [interleaved(rank, p, m, v) for rank in range(p)]
    for rank, queue in enumerate(queues):
        kept = most = 0
        for kind, _, _ in queue:
            kept += 1 if kind == "f" else -1
            most = max(most, kept)
        assert most / v == pytest.approx(schedules.get("interleaved").in_flight(p, m, v, rank))
    # The order is one that can run: each pass waits for its neighbour, and the bubble is that of the formula
    free, done = [0] * p, {}
    while any(queues):
        waiting = sum(map(len, queues))
        for rank, queue in enumerate(queues):
            while queue:
                kind, i, chunk = queue[0]
                if kind == "f":
                    before = ("f", i, chunk * p + rank - 1)
                else:
                    before = ("b", i, chunk * p + rank + 1) if chunk * p + rank < p * v - 1 else ("f", i, p * v - 1)
                if before[2] >= 0 and before not in done:
                    break
                start = max(free[rank], done.get(before, 0))
                free[rank] = done[kind, i, chunk * p + rank] = start + (FORWARD if kind == "f" else BACKWARD)
                queue.pop(0)
        assert sum(map(len, queues)) < waiting
    ideal = m * v * (FORWARD + BACKWARD)
    assert max(free) == pytest.approx(ideal * (1 + schedules.get("interleaved").bubble_over_ideal(p, m, v)))


@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 64)])
def test_better_schedules_idle_less_and_keep_no_less(p, m):
    bubbles = {name: schedule.bubble_over_ideal(p, m, 4) for name, schedule in schedules.SCHEDULES.items()}
    kept = {name: schedule.in_flight(p, m, 4, 0) for name, schedule in schedules.SCHEDULES.items()}
    assert bubbles["interleaved"] == bubbles["1f1b"] / 4
    assert bubbles["zero_bubble_h1"] == bubbles["1f1b"] / 3
    assert bubbles["zero_bubble_h2"] == 0 < bubbles["dualpipe"] < bubbles["1f1b"]
    assert kept["1f1b"] == kept["zero_bubble_h1"] == p < kept["dualpipe"] < kept["zero_bubble_h2"] < kept["gpipe"] == m
    # Narayanan et al.: interleaving keeps 1 + (p-1)/(p v) times as much
    assert kept["interleaved"] == p * (1 + (p - 1) / (4 * p))
