"""How fast a step is simulated: ``python -m benchmarks.timeline``.

16 stages and 2,048 micro-batches under every schedule, for three kinds of lengths; process time [ms] of the first call,
which compiles the order, and of the best of several later ones.
"""

from __future__ import annotations

import time

STAGES, MICRO_BATCHES = 16, 2048
CASES = (
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 5), ("interleaved_less_memory", 4), ("seqpipe", 2),
    ("zero_bubble_v", 2),
)  # fmt: skip


def main() -> None:
    """Measure and print a Markdown table."""
    import numpy as np

    from planner.timeline import program
    from planner.timeline.simulation import makespans

    print("| schedule | chunks | lengths | first ms | later ms |")
    print("| --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(0)
    for schedule, chunks in CASES:
        shape = (chunks, STAGES, 1)
        kinds = {
            "equal": np.ones(shape),
            "within 1 %": 1.0 + 0.01 * rng.random(shape),
            "random": 0.2 + rng.random(shape),
        }
        for name, forward in kinds.items():
            for cache in (program.whole, program._cut):
                cache.cache_clear()
            spent = []
            for _ in range(6):
                begin = time.process_time()
                makespans(schedule, forward, 2.0 * forward, forward, MICRO_BATCHES)
                spent.append(1e3 * (time.process_time() - begin))
            print(f"| {schedule} | {chunks} | {name} | {spent[0]:.1f} | {min(spent[1:]):.1f} |")


if __name__ == "__main__":
    main()
