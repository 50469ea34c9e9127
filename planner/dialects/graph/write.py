"""A plan as one MindFormers graph-mode file: mcore dialect where the family has a class there, legacy for Llama."""

from __future__ import annotations

from typing import Final

from planner.cluster.placement import ends_lie_alike
from planner.dialects import families
from planner.dialects.graph import glm, legacy, mcore, sections
from planner.dialects.records import File, Placeholder, Settings
from planner.dialects.text.yaml_write import Entry, document
from planner.errors import EmitError
from planner.legality.sequence import exchanges_heads
from planner.plan import Plan

TARGET: Final = "mindformers"
NAME: Final = "pretrain.yaml"

NO_SELECTIVE: Final = (
    "select_recompute saves no memory in legacy networks of MindFormers 1.9 and is counted so; recompute layers whole."
)


def render(plan: Plan, settings: Settings | None = None) -> File:
    """Text of ``pretrain.yaml``.

    Raises
    ------
    EmitError
        MindFormers has no class for the family, or cannot hold something of the shape or the strategy.
    """
    settings = settings or Settings()
    families.check_family(plan.model, TARGET)
    is_legacy = plan.model.family in families.LEGACY
    dialect = glm if plan.model.family in families.GLM else legacy if is_legacy else mcore
    dialect.check(plan.model)
    _check_strategy(plan, is_legacy=is_legacy)
    entries: list[Entry] = [
        *sections.run(plan, settings, legacy=is_legacy),
        *sections.optimizer(plan),
        *dialect.dataset(plan, settings),
        sections.context(plan),
        *sections.parallel_config(plan, legacy=is_legacy),
        sections.parallel(plan, legacy=is_legacy),
        sections.recompute(plan, glm.select_recompute(plan) if dialect is glm else None, legacy=is_legacy),
        dialect.model_section(plan),
        sections.callbacks(plan, balance=plan.model.family in families.LATENT),
    ]
    header = sections.header(plan, "legacy" if is_legacy else "mcore")
    placeholders = () if settings.data_path else (_data_placeholder(plan.model.family),)
    notes = tuple(f"To fill in: {p.where}: {p.what}" for p in placeholders)
    idle = is_legacy and any(plan.strategy.recompute_selective)
    said = ((NO_SELECTIVE,) if idle else ()) if is_legacy else _unsure(plan)
    return File(
        name=NAME,
        text=document([*header[:-1], *notes, ""], entries),
        placeholders=placeholders,
        notes=said,
    )


def _unsure(plan: Plan) -> tuple[str, ...]:
    """What no device has shown of a pipeline whose first and last stage lie differently on nodes (docs/dryrun.md)."""
    if ends_lie_alike(plan.devices, plan.strategy.pp):
        return ()
    last = plan.devices - plan.devices // plan.strategy.pp
    return (
        f"MindSpore 2.9 makes no group of ranks 0 and {last} to hand data from the first to the last stage; if the job "
        "ends in HcomAllBroadCastKernel, use a multiple of eight ranks a stage.",
    )


def _data_placeholder(family: str) -> Placeholder:
    if family in families.LEGACY:
        columns = f" (columns {', '.join(glm.COLUMNS)})" if family in families.GLM else ""
        return Placeholder(
            file=NAME,
            where="train_dataset.data_loader.dataset_dir",
            what=f"folder of the MindRecord training data{columns}",
        )
    return Placeholder(
        file=NAME,
        where="train_dataset.data_loader.config.data_path",
        what="prefix of the Megatron .bin/.idx training data",
    )


def _check_strategy(plan: Plan, *, is_legacy: bool) -> None:
    """Refuse what the file format has no words for; whether a layout is legal is decided before."""
    s, workload = plan.strategy, plan.workload
    if s.schedule in ("1f1b", "gpipe") and s.vpp > 1:
        raise EmitError(
            f"schedule {s.schedule} with vpp {s.vpp} cannot be written for MindFormers; use schedule interleaved."
        )
    if s.schedule == "interleaved" and s.vpp == 1:
        raise EmitError("schedule interleaved needs vpp of at least 2; use schedule 1f1b with vpp 1.")
    if s.schedule == "zero_bubble_v" and is_legacy:
        raise EmitError("zero_bubble_v needs chunks in a V, which legacy networks are not; use schedule interleaved.")
    if s.sequence_parallel and s.tp == 1:
        raise EmitError("sequence parallelism needs tp of at least 2; switch sequence_parallel off.")
    if s.cp > 1 and s.cp_algorithm != "ring" and not is_legacy and not exchanges_heads(plan.model):
        raise EmitError(
            f"cp_algorithm {s.cp_algorithm} cannot be written for MindFormers: the head exchange of its mcore "
            "attention compiles only for latent attention with value heads as wide as query heads (1.9.0 and 2.0.0 "
            "reshape the wrong axes otherwise); use cp_algorithm ring."
        )
    if workload.optimizer not in ("AdamW", "Muon"):
        raise EmitError(f"optimizer {workload.optimizer!r} cannot be written for MindFormers; legal: AdamW, Muon.")
    if workload.optimizer == "Muon" and is_legacy:
        raise EmitError(f"Muon works with mcore families only; use AdamW for {plan.model.family}.")
