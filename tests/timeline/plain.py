"""The plain loop that the simulation is held to: every pass of every stage, one after the other."""

from __future__ import annotations

from planner.timeline.orders import BACKWARD, FORWARD, WEIGHTS, orders

Grid = list[list[float]]


def plain_ends(
    schedule: str, forward: Grid, backward: Grid, weights: Grid, micro_batches: int, transfer: float = 0.0
) -> dict[tuple[int, int, int, int], tuple[float, float]]:
    """Start and end of each pass, by stage, kind, micro-batch and chunk; lengths are ``[chunk][stage]``."""
    v, p = len(forward), len(forward[0])
    lines = [line.tolist() for line in orders(schedule, p, v, micro_batches).passes]
    bent = schedule == "zero_bubble_v"
    path = [(c, p - 1 - i if bent and c % 2 else i) for c in range(v) for i in range(p)]
    at = [0] * p
    free = [0.0] * p
    done: dict[tuple[int, int, int, int], tuple[float, float]] = {}
    while any(at[s] < len(lines[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while at[s] < len(lines[s]):
                kind, micro, chunk = lines[s][at[s]]
                place = path.index((chunk, s))
                arrived = 0.0
                if kind == FORWARD and place > 0:
                    c, other = path[place - 1]
                    needs = (other, FORWARD, micro, c)
                elif kind == BACKWARD and place < len(path) - 1:
                    c, other = path[place + 1]
                    needs = (other, BACKWARD, micro, c)
                else:
                    needs = None if kind == FORWARD else (s, kind - 1, micro, chunk)
                if needs is not None:
                    if needs not in done:
                        break
                    arrived = done[needs][1] + (transfer if needs[0] != s else 0.0)
                late = weights[chunk][s] if bent else 0.0
                seconds = {FORWARD: forward, BACKWARD: backward, WEIGHTS: weights}[kind][chunk][s]
                seconds -= late if kind == BACKWARD else 0.0
                begin = max(free[s], arrived)
                free[s] = begin + seconds
                done[s, kind, micro, chunk] = begin, free[s]
                at[s] += 1
                moved = True
        assert moved, "stalled"
    return done


def plain_makespan(schedule: str, *lengths: Grid, micro_batches: int, transfer: float = 0.0) -> float:
    """End of the last pass."""
    ends = plain_ends(schedule, *lengths, micro_batches=micro_batches, transfer=transfer)
    return max(end for _, end in ends.values())
