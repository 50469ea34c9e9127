"""Train a small network on the CPU with the monitor; run by test_callback.py as a program of its own.

python train.py graph|sink|pynative LEDGER PLAN
"""

from __future__ import annotations

import sys

import mindspore as ms
import numpy as np
from mindspore import dataset, nn

from planner.monitor import PlanMonitor

HEAVY = ("planner.search", "planner.dialects", "ortools", "networkx", "ruamel")


def samples():
    generator = np.random.default_rng(0)
    for _ in range(160):
        x = generator.standard_normal(64).astype(np.float32)
        yield x, x[:8]


def main() -> None:
    mode, ledger, plan = sys.argv[1:4]
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE if mode == "pynative" else ms.GRAPH_MODE)
    network = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 8))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-2)
    model = ms.Model(network, nn.MSELoss(), optimizer)
    data = dataset.GeneratorDataset(samples, ["x", "y"], shuffle=False).batch(8)
    monitor = PlanMonitor(ledger, plan=None if plan == "-" else plan)
    model.train(2, data, callbacks=[monitor], dataset_sink_mode=mode == "sink")
    assert not [name for name in HEAVY if name in sys.modules], "the monitor brought a heavy library"
    sys.stdout.write(f"trained {monitor.is_broken}\n")


if __name__ == "__main__":
    main()
