"""Train the plan beside this file with MindFormers; msrun starts one process for each device (see launch.sh)."""
# Written by planner.

import argparse
from pathlib import Path

from mindformers.core.context import build_context
from mindformers.tools.register.config import MindFormerConfig
from mindformers.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", nargs="?", default=str(Path(__file__).with_name("pretrain.yaml")))
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps; 0: train to the end of the data")
    arguments = parser.parse_args()
    config = MindFormerConfig(arguments.config)
    if arguments.steps > 0:
        config.runner_config.stop_step = arguments.steps
    build_context(config)
    Trainer(config).train()


if __name__ == "__main__":
    main()
