"""Run a MindFormers graph-mode file through MindFormers' and MindSpore's own checks, in a process of its own.

``python prove_child.py FILE`` prints one JSON object on its last line: what the framework understood.  Any exception of
the framework is a failed proof.  One file a process: after a failed conversion MindFormers rejects valid files too, and
its layouts are singletons.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import types
from pathlib import Path

import yaml


def listen() -> list[str]:
    """Collect what MindFormers' loader warns of from now on."""
    from mindformers.tools.register import template

    heard: list[str] = []
    warn = template.logger.warning

    def warning(message: str, *args: object, **kwargs: object) -> None:
        heard.append(str(message))
        warn(message, *args, **kwargs)

    template.logger.warning = staticmethod(warning)
    return heard


def pretend_ranks(devices: int) -> None:
    """Answer communication questions as rank 0 of `devices` ranks would be answered."""
    answers = {
        "get_rank": lambda *a, **k: 0,
        "get_group_size": lambda *a, **k: devices,
        "create_group": lambda *a, **k: None,
        "initialize_model_parallel": lambda *a, **k: None,
        "init": lambda *a, **k: None,
    }
    for kind in ("world", "data_parallel", "tensor_model_parallel", "pipeline_model_parallel", "moe_tensor_parallel",
                 "moe_expert_parallel", "tensor_and_data_parallel"):  # fmt: skip
        answers[f"get_{kind}_group"] = lambda *a, **k: types.SimpleNamespace(group="hccl_world_group", size=1, rank=0)
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if not (name.startswith(("mindformers", "mindspore.communication"))):
            continue
        for key, answer in answers.items():
            if callable(getattr(module, key, None)) and not isinstance(getattr(module, key), type):
                setattr(module, key, answer)


def set_context(config, devices: int) -> dict:
    """MindSpore context on the CPU, then the file's own `parallel` section through MindSpore's checks."""
    import mindspore as ms
    from mindformers.core.context import build_context
    from mindspore.parallel._auto_parallel_context import auto_parallel_context

    on_cpu = copy.deepcopy(config)
    on_cpu.use_parallel = False
    on_cpu.context.device_target = "CPU"
    for key in ("ascend_config", "mempool_block_size", "max_device_memory", "memory_optimize_level"):
        on_cpu.context.pop(key, None)
    build_context(on_cpu)
    section = {key: value for key, value in config.parallel.items()}
    section.pop("strategy_ckpt_save_file", None)
    if isinstance(section.get("dataset_strategy"), list):
        section["dataset_strategy"] = tuple(tuple(row) for row in section["dataset_strategy"])
    for key, value in section.items():
        section[key] = value.to_dict() if hasattr(value, "to_dict") else value
    modes = {0: "data_parallel", 1: "semi_auto_parallel", 2: "auto_parallel", 3: "hybrid_parallel"}
    section["parallel_mode"] = modes.get(section.get("parallel_mode"), section.get("parallel_mode"))
    ms.reset_auto_parallel_context()
    ms.set_auto_parallel_context(
        **section, device_num=devices, global_rank=0, pipeline_stages=config.parallel_config.pipeline_stage
    )
    asked = ("pipeline_stages", "pipeline_interleave", "pipeline_scheduler", "enable_parallel_optimizer",
             "optimizer_weight_shard_size")  # fmt: skip
    heard = {key: ms.get_auto_parallel_context(key) for key in asked}
    handle = auto_parallel_context()._context_handle
    return {**heard, "gradients_sharded": handle.get_grad_accumulation_shard(), "weights_sharded": handle.get_zero3()}


def layer_setting(config, net):
    """The framework's own layer placement."""
    from mindformers.parallel_core.training_graph.transformer.utils import LayerSetting

    if config.use_legacy:
        return (net.transformer.encoder if hasattr(net, "transformer") else net.model).layer_setting
    core = net.get_gpt_transformer_config()
    return LayerSetting(core.num_layers, core.offset, core, core.virtual_pipeline_model_parallel_size)


def decoder_layers(config, net):
    """Decoder layers in model order."""
    if hasattr(net, "transformer"):
        return list(net.transformer.encoder.layers)
    return list(net.model.layers if config.use_legacy else net.model.decoder.layers)


def prove(path: str) -> dict:
    """What MindFormers makes of the file."""
    raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    import mindspore as ms
    import mindspore.communication.management  # noqa: F401 - answered by `pretend_ranks`
    from mindformers.core.parallel_config import build_parallel_config
    from mindformers.models.build_model import build_network
    from mindformers.tools.register.config import MindFormerConfig
    from mindspore.nn.utils import no_init_parameters

    heard = listen()
    config = MindFormerConfig(path)
    useless = [line for line in heard if "useless" in line]
    section = raw["parallel_config"]
    devices = math.prod(
        section.get(key, 1) for key in ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel")
    )
    parallel = set_context(config, devices)
    pretend_ranks(devices)
    build_parallel_config(config)
    understood = config.parallel_config.to_dict()
    with no_init_parameters():
        net = build_network(
            config.model, default_args={"parallel_config": config.parallel_config, "moe_config": config.moe_config}
        )
    if callable(getattr(net, "check_pipeline_stage", None)):
        net.check_pipeline_stage()
    setting = layer_setting(config, net)
    layers = decoder_layers(config, net)
    return {
        "useless": useless,
        "parallel": parallel,
        "parallel_config": {key: value for key, value in understood.items() if isinstance(value, (int, bool, str))},
        "layer_list": [[int(n) for n in row] for row in setting.layer_list],
        "layer_recompute": [[int(n) for n in row] for row in setting.layer_recompute],
        "select_recompute": {k: [[int(n) for n in row] for row in v] for k, v in setting.select_recompute.items()},
        "trainable": sum(math.prod(p.shape) for p in net.trainable_params()),
        "stages": [int(layer.pipeline_stage) for layer in layers],
        "segments": [int(getattr(layer, "pipeline_segment", 0) or 0) for layer in layers],
        "versions": {"mindspore": ms.__version__, "mindformers": sys.modules["mindformers"].__version__},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(prove(sys.argv[1])) + "\n")
