"""The known formats: what each is recognised by, and who reads it.

A table is recognised by its columns, anything else by words of its first 64 KiB; names only break ties.  The first
format that fits reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.errors import SpecError
from planner.observe import (
    collective_tests,
    communication,
    data_pipeline,
    database,
    kernels,
    memory,
    metadata,
    plain_tables,
    step_tables,
    timelines,
    training_log,
)
from planner.observe.records import Observation
from planner.observe.tables import header
from planner.observe.text import File


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One kind of file.

    Attributes
    ----------
    name : str
        As docs/observe.md lists it.
    reader : callable
        Turns the file into an observation.
    columns : frozenset of str
        Columns that a table of this kind has, in `planner.observe.tables.column`'s spelling; empty for other files.
    lacks : frozenset of str
        Columns that it has not.
    recognise : callable or None
        For files that are no tables.
    is_json : bool
        The file is one JSON value.
    """

    name: str
    reader: Callable[[File], Observation]
    columns: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    recognise: Callable[[File], bool] | None = None
    is_json: bool = False

    def read(self, file: File) -> Observation:
        """The file as an observation.

        Raises
        ------
        PlannerError
            Cut short, damaged, or no measurement.
        """
        try:
            return self.reader(file).with_notes(*file.problems)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if not self.is_json:
                raise
            raise SpecError(
                f"{file.path}: {self.name} with a value of a wrong kind ({error}); copy it again."
            ) from error

    def fits(self, file: File, columns: frozenset[str]) -> bool:
        """Whether the file is of this kind."""
        if self.recognise is not None:
            return self.recognise(file)
        return self.columns <= columns and not self.lacks & columns


def _table(name: str, read: Callable[[File], Observation], columns: str, lacks: str = "") -> Format:
    return Format(name=name, reader=read, columns=frozenset(columns.split()), lacks=frozenset(lacks.split()))


#: Traces are large and repeat the tables: read alone, or where a folder has no table.
TRACE: Final = Format(name="trace_view.json", reader=timelines.read_trace, recognise=timelines.is_trace, is_json=True)
FORMATS: Final = (
    Format(name="analysis.db, cluster_analysis.db", reader=database.read_database, recognise=database.is_database),
    _table("step_trace_time.csv", step_tables.read_step_trace, "computing free", "index"),
    _table("cluster_step_trace_time.csv", step_tables.read_cluster_step_trace, "computing free type index"),
    _table("kernel_details.csv or op_summary.csv", kernels.read_kernel_table, "name duration(us) start_time(us)"),
    _table("op_statistic.csv", kernels.read_op_statistic, "type count total_time(us)"),
    _table("task_time.csv", kernels.read_task_time, "kernel_name kernel_type task_time(us)"),
    _table("api_statistic.csv", kernels.read_api_statistic, "level api_name time(us) count"),
    _table("memory_record.csv", memory.read_memory_record, "component timestamp(us) total_reserved(mb)"),
    _table("memory_record.csv of msprof", memory.read_memory_record, "component timestamp(us) total_reserved(kb)"),
    _table("cpu_ms_memory_record.txt", memory.read_memory_record, "timestamp(ns) total_reserved(byte)"),
    _table("cpu_op_type_info.csv", kernels.read_cpu_type, "type_occurrences total_compute_time"),
    _table(
        "ascend_cluster_analyse.csv, pipeline",
        step_tables.read_old_cluster,
        "computation_time communication_alone_time",
    ),
    _table("ascend_cluster_analyse.csv, model", step_tables.read_old_cluster, "computation communication_alone_time"),
    _table(
        "ascend_cluster_analyse.csv, data", step_tables.read_old_cluster, "iteration_interval fp_and_bp tail", "total"
    ),
    _table(
        "step_trace.csv of msprof", step_tables.read_msprof_steps, "iteration_id iteration_time(us) fp_to_bp_time(us)"
    ),
    _table("step_trace_raw.csv", step_tables.read_step_trace_raw, "start_point end_point total fp_and_bp tail"),
    _table("hccl_raw.csv", communication.read_hccl_raw, "communication_cost wait_cost link_info"),
    _table("aicore_intermediate_type.csv", kernels.read_aicore_type, "kernel_type execution_frequency percent"),
    _table("aicore_intermediate_detail.csv", kernels.read_aicore_detail, "execution_time execution_frequency"),
    _table("minddata_pipeline_raw.csv", data_pipeline.read_pipeline_raw, "op_id output_queue_size output_queue_length"),
    _table("table of the HCCL tuner", plain_tables.read_tuner_table, "type size_bytes ranks.ranks alg_latency(us)"),
    Format(
        name="communication.json",
        reader=communication.read_communication_json,
        recognise=communication.is_communication_json,
        is_json=True,
    ),
    Format(name="profiler_metadata.json", reader=metadata.read_metadata, recognise=metadata.is_metadata, is_json=True),
    Format(
        name="profiler_info.json", reader=metadata.read_profiler_info, recognise=metadata.is_profiler_info, is_json=True
    ),
    Format(
        name="communication_group.json",
        reader=metadata.read_communication_group,
        recognise=metadata.is_communication_group,
        is_json=True,
    ),
    Format(
        name="flops_summary.json", reader=metadata.read_flops_summary, recognise=metadata.is_flops_summary, is_json=True
    ),
    Format(
        name="pipeline_profiling.json",
        reader=data_pipeline.read_pipeline_profile,
        recognise=data_pipeline.is_pipeline_profile,
        is_json=True,
    ),
    Format(
        name="minddata_cpu_utilization.json",
        reader=data_pipeline.read_cpu_utilization,
        recognise=data_pipeline.is_cpu_utilization,
        is_json=True,
    ),
    Format(
        name="dataset_iterator_profiling.txt or device_queue_profiling.txt",
        reader=data_pipeline.read_queue_profile,
        recognise=data_pipeline.is_queue_profile,
    ),
    Format(
        name="cpu_op_execute_timestamp.txt",
        reader=timelines.read_execute_timestamp,
        recognise=timelines.is_execute_timestamp,
    ),
    TRACE,
    Format(name="hccl_test log", reader=collective_tests.read_hccl_test, recognise=collective_tests.is_hccl_test),
    Format(name="nccl-tests log", reader=collective_tests.read_nccl_tests, recognise=collective_tests.is_nccl_tests),
    Format(
        name="table of operators", reader=plain_tables.read_operator_table, recognise=plain_tables.is_operator_table
    ),
    Format(name="table of steps", reader=plain_tables.read_step_table, recognise=plain_tables.is_step_table),
    Format(name="JSON lines with steps", reader=plain_tables.read_json_lines, recognise=plain_tables.is_json_lines),
    Format(name="training log", reader=training_log.read_training_log, recognise=training_log.is_training_log),
)


def recognised(file: File) -> Format | None:
    """The format of a file; None when it is none of the known.

    Raises
    ------
    SpecError
        The file is empty.
    """
    if not file.raw_head.strip():
        raise SpecError(f"{file.path} is empty.")
    if file.is_binary:
        return next((form for form in FORMATS[:1] if form.fits(file, frozenset())), None)
    columns = frozenset(header(file))
    return next((form for form in FORMATS if form.fits(file, columns)), None)


def unknown(file: File) -> SpecError:
    """What to say of a file of no known format: the nearest table and what it lacks, or all formats."""
    if file.is_binary:
        return SpecError(f"{file.path} is no text; profiles are read from their .csv and .json files, logs from text.")
    columns = frozenset(header(file))
    tables = [form for form in FORMATS if form.columns & columns]
    if tables:
        near = max(tables, key=lambda form: len(form.columns & columns) / len(form.columns))
        lacking = ", ".join(sorted(near.columns - columns)) or "nothing, but has " + ", ".join(near.lacks & columns)
        return SpecError(f"{file.path}: unknown table; nearest is {near.name}, of which it lacks {lacking}.")
    first = next((line.strip()[:80] for line in file.head.splitlines() if line.strip()), "")
    names = "; ".join(form.name for form in FORMATS)
    return SpecError(f"{file.path}: unknown format (first line '{first}'). Known: {names}.")
