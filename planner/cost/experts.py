"""Expert tensor parallelism of each framework: what a rank may hold of an expert, and what it holds when not asked.

Sources, read in public repositories:

* Megatron-LM ``training/arguments.py``: ``--expert-tensor-parallel-size`` is the tensor-parallel size unless given;
  ``core/parallel_state.py`` asks for a world that divides by etp x ep x pp, so ep x etp divides dp x cp x tp.
* MindSpeed ``features_manager/moe/tp_extend_ep.py``: with ``--moe-tp-extend-ep`` ranks of a tensor-parallel group hold
  different whole experts: ep x tp times fewer than the model's, with the dispatcher ``alltoall_seq`` alone.  Current
  scripts of MindSpeed-LLM say the same as ``--expert-tensor-parallel-size 1`` with the dispatcher ``alltoall``.
* MindFormers 1.9 ``parallel_core/training_graph/transformer/moe/ffn.py`` (mcore): experts whole, over dp x tp;
  ``models/llama/llama_layer.py`` (legacy): weights ``(ep, mp, 1)``, or whole experts with
  ``moe_config.expert_model_parallel: 1``, which takes no other number; ``pynative/distributed/parallel_dims.py``:
  etp 1 alone.
"""

from __future__ import annotations

from planner import frameworks


def default_etp(framework: str, *, experts: bool, tp: int) -> int:
    """Expert tensor-parallel degree of a run that does not ask for one.

    >>> default_etp("megatron", experts=True, tp=8), default_etp("mindformers", experts=True, tp=8)
    (8, 1)
    """
    return tp if experts and frameworks.of(framework).expert_parts != "whole" else 1


def usual_etp(framework: str, *, experts: bool, tp: int) -> tuple[int, ...]:
    """Degrees that a search looks at: whole experts, and where the framework has it the split over tp.

    >>> usual_etp("mindspeed", experts=True, tp=4), usual_etp("mindspeed", experts=False, tp=4)
    ((1, 4), (1,))
    """
    return tuple(sorted({1, default_etp(framework, experts=experts, tp=tp)}))


def legal_etp(framework: str, *, experts: bool, tp: int, width: int) -> tuple[int, ...]:
    """Degrees that a framework can run with experts of ``width`` columns.

    >>> legal_etp("mindformers-legacy", experts=True, tp=4, width=96)
    (1, 4)
    >>> legal_etp("megatron", experts=True, tp=2, width=4)
    (1, 2, 4)
    """
    if experts and frameworks.of(framework).expert_parts == "any":
        return tuple(degree for degree in range(1, width + 1) if width % degree == 0)
    return usual_etp(framework, experts=experts, tp=tp)
