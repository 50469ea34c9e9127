"""Published measurements as records: one row of a reference CSV becomes model, workload and strategy.

Three formats, told apart by their columns:

* step times (``derived_step_time_s``): throughput of training runs with their layout,
* memory cases (``observed_gib``): peaks, static bytes, fits and out-of-memory reports,
* simulator rows (``measured_peak_alloc_gib``): step time and peak per pipeline end, with another simulator's figures.

A row that leaves something out is completed where a default is known; what was assumed is listed in
``TruthRow.assumed``.  A row that cannot be completed has ``strategy`` (or ``model``) None and says why in ``missing``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from planner import frameworks
from planner.cost.experts import default_etp
from planner.cost.strategies import Strategy
from planner.errors import CalibrationError, PlannerError
from planner.model.records import Attention, LayerKind, Model, Moe, Workload
from planner.observe.published_text import (
    cells,
    flags_of,
    layers_per_chunk,
    number,
    options_of,
    recompute_layers,
    stage_values,
)

STEP_TIMES: Final = "step-times"
MEMORY_CASES: Final = "memory-cases"
SIMULATOR_ROWS: Final = "simulator-rows"

#: Columns without which a table is of no use, by format.  The first line of each tells the formats apart: one of them
#: must be there.
_MARKS: Final = {
    STEP_TIMES: ("derived_step_time_s", "reported_step_time_s"),
    MEMORY_CASES: ("observed_gib",),
    SIMULATOR_ROWS: ("measured_step_s", "measured_peak_alloc_gib"),
}
_LAYOUT: Final = ("case_id", "hardware", "framework", "model", "hidden", "layers", "heads", "ffn", "seq", "tp", "pp")
_NEEDED: Final = {
    STEP_TIMES: (*_LAYOUT, "mbs", "gbs"),
    MEMORY_CASES: ("id", "observed", "device_gib", "hardware", "framework", "model", "hidden", "layers", "heads"),
    SIMULATOR_ROWS: (*_LAYOUT, "mbs"),
}
#: Columns that the reader looks up and that a file may leave out: their cells are then empty.
_OPTIONAL: Final = {
    STEP_TIMES: (
        "derived_step_time_s", "reported_step_time_s", "peak_memory_gib", "metric", "value", "mfu_flag", "recompute",
        "source", "zero", "optimizer_shard", "port_gb_per_s",
    ),
    MEMORY_CASES: ("source", "experts/topk", "recompute", "zero"),
    SIMULATOR_ROWS: (
        "measured_step_s", "measured_peak_alloc_gib", "measured_peak_reserved_gib", "measured_alloc_stage_first_gib",
        "measured_alloc_stage_last_gib", "truth_kind", "recompute", "source", "zero_stage",
    ),
}  # fmt: skip

#: Latent-attention sizes of families whose rows leave them out: q_lora, kv_lora, nope, rope, v (their config.json).
_LATENT: Final = {
    "deepseek": (1536, 512, 128, 64, 128),
    "pangu-ultra-moe": (1536, 512, 128, 64, 128),
    "glm-5": (2048, 512, 192, 64, 256),
}

#: Expert width, shared-expert width and leading dense layers of families whose rows leave them out (their config.json;
#: published runs on a few layers keep one dense layer).
_EXPERTS: Final = {"deepseek-v2": (1536, 3072, 1), "deepseekv2": (1536, 3072, 1), "deepseekv3": (2048, 2048, 1)}

#: Shapes of rows that only name the model (config.json or the paper of that name).
_NAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "glm-5.1": {
        "hidden": "6144", "layers": "78", "heads": "64", "ffn": "12288", "vocab": "154880", "experts": "256",
        "topk": "8", "moe_ffn": "2048", "shared_expert_ffn": "2048", "dense_layers": "3",
    },
    "gpt2-2.6b": {"hidden": "1920", "layers": "54", "heads": "20", "ffn": "7680", "vocab": "51200"},
    "gpt 40b": {"hidden": "8192", "layers": "48", "heads": "64", "ffn": "32768", "vocab": "51200"},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """One published run.

    Attributes
    ----------
    measured : mapping of str to float
        What was published, by name: ``step_s``, ``tokens_per_s_per_device``, ``tflop_per_s_per_device``, ``mfu``,
        ``peak_bytes``, ``reserved_bytes``, ``first_stage_bytes``, ``last_stage_bytes``, ``limit_bytes``.
    stage_peak_bytes, stage_static_bytes : tuple of float
        Per printed rank, in the order of the source; empty when the source has one figure only.
    observed : {"fits", "oom", ""}
    generation : str
        Version string of the framework ("r1.3.0", "1.0.RC3", "2023").
    flags : frozenset of str
        Switches named by the row, see ``published_text.FLAGS``.
    switches : tuple of str
        Memory switches that the reader of the row's file finds in it (``planner.cost.memory.rules.SWITCHES``).
    options : mapping of str to int
        Numbers belonging to switches, such as ``micro_batch_interleave`` or ``vocab_pad``.
    assumed : frozenset of str
        Columns the row leaves out and the reader completed.
    missing : tuple of str
        Columns without which no strategy or model can be built.
    usable : bool
        False where the source itself flags the figure as impossible or doubtful.
    problem : str
        Why the row cannot be read at all; empty for readable rows.
    """

    case_id: str
    kind: str
    framework_text: str
    generation: str
    hardware: str
    devices: int
    devices_per_node: int
    device_bytes: float
    model: Model | None
    workload: Workload | None
    strategy: Strategy | None
    measured: Mapping[str, float]
    observed: str = ""
    stage_peak_bytes: tuple[float, ...] = ()
    stage_static_bytes: tuple[float, ...] = ()
    flags: frozenset[str] = frozenset()
    switches: tuple[str, ...] = ()
    options: Mapping[str, int] = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    usable: bool = True
    confidence: str = ""
    source: str = ""
    notes: str = ""
    problem: str = ""


def kind_of(path: str | Path) -> str:
    """Which of the three formats a CSV file has.

    Raises
    ------
    CalibrationError
        When its columns are those of none.
    """
    columns = columns_of(path)
    for kind, marks in _MARKS.items():
        if columns.intersection(marks):
            return kind
    wanted = "; ".join(f"{kind}: {' or '.join(marks)}" for kind, marks in _MARKS.items())
    raise CalibrationError(f"{path}: columns match no known table. The column that tells it is, for {wanted}.")


def columns_of(path: str | Path) -> set[str]:
    """Columns of a CSV file."""
    return set(_table(path)[0])


def read_step_times(path: str | Path) -> list[TruthRow]:
    """Rows of a table of step times."""
    return [_read_row(_step_row, row, STEP_TIMES) for row in _rows(path, STEP_TIMES)]


def read_memory_cases(path: str | Path) -> list[TruthRow]:
    """Rows of a table of memory cases."""
    return [_read_row(_memory_row, row, MEMORY_CASES) for row in _rows(path, MEMORY_CASES)]


def read_simulator_rows(path: str | Path) -> list[TruthRow]:
    """Rows of a table of simulator comparisons."""
    return [_read_row(_simulator_row, row, SIMULATOR_ROWS) for row in _rows(path, SIMULATOR_ROWS)]


def _table(path: str | Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            rows = [{key: (value or "").strip() for key, value in row.items() if key} for row in reader]
            return list(reader.fieldnames or ()), rows
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read as CSV ({error.strerror or error}).") from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: cannot be read as CSV (not UTF-8 text at byte {error.start}).") from error
    except csv.Error as error:
        raise CalibrationError(f"{path}: cannot be read as CSV ({error}).") from error


def _rows(path: str | Path, kind: str) -> list[dict[str, str]]:
    columns, rows = _table(path)
    absent = [name for name in _NEEDED[kind] if name not in columns]
    if not set(columns).intersection(_MARKS[kind]):
        absent.append(" or ".join(_MARKS[kind]))
    if absent:
        raise CalibrationError(f"{path}: not a {kind} table, column(s) {', '.join(absent)} are missing.")
    empty = dict.fromkeys(_OPTIONAL[kind], "")
    name = "id" if kind == MEMORY_CASES else "case_id"
    return [{**empty, **row, name: row[name] or f"line {line}"} for line, row in enumerate(rows, 2)]


def _read_row(read: Callable[[dict[str, str]], TruthRow], row: dict[str, str], kind: str) -> TruthRow:
    """One row; a row with impossible cells is kept with what is wrong about it, so that the others can be read."""
    try:
        return read(row)
    except PlannerError as error:
        reason = str(error)
    except KeyError as error:
        reason = f"incomplete layout, missing {error.args[0]}."
    except (ValueError, ArithmeticError) as error:
        reason = f"a cell is out of range ({error})."
    return TruthRow(
        case_id=row["id"] if kind == MEMORY_CASES else row["case_id"], kind=kind, framework_text=row["framework"],
        generation="", hardware=row["hardware"], devices=0, devices_per_node=8, device_bytes=0.0, model=None,
        workload=None, strategy=None, measured={}, missing=("readable cells",), usable=True, problem=reason,
    )  # fmt: skip


def _step_row(row: dict[str, str]) -> TruthRow:
    measured = _numbers(
        peak_bytes=_gib(row["peak_memory_gib"]),
        step_s=number(row["reported_step_time_s"]) or number(row["derived_step_time_s"]),
    )
    names = {
        "tokens_per_s_per_device": "tokens_per_s_per_device", "mfu": "mfu", "samples_per_s": "samples_per_s",
        "model_tflops_per_device": "tflop_per_s_per_device", "hw_tflops_per_device": "hardware_tflop_per_s_per_device",
        "activation_memory_saving_gib": "activation_saving_gib", "min_devices_full_finetune": "minimum_devices",
    }  # fmt: skip
    value = number(row["value"])
    if row["metric"] in names and value is not None:
        measured[names[row["metric"]]] = value
    return _row(row, STEP_TIMES, measured, usable=row["mfu_flag"] in {"ok", ""})


def _memory_row(row: dict[str, str]) -> TruthRow:
    text = row["source"]
    measured = _numbers(
        peak_bytes=_gib(row["observed_gib"]),
        reserved_bytes=_gib(_search(r"reserved ([\d.]+) GiB", text)),
        limit_bytes=_gib(_search(r"max_device_memory ([\d.]+) GB", text)),
        step_s=_scaled(_search(r"(?:median )?step ([\d.]+) ms", text), 1e-3),
    )
    experts, _, topk = row["experts/topk"].partition("/")
    extra = {
        "case_id": row["id"], "experts": experts, "topk": topk.split(" ")[0], "vpp": "", "notes": text,
        "moe_ffn": _search(r"moe_ffn[= ](\d+)", text) or _search(r"moe_ffn (\d+)", row["experts/topk"]),
        "shared": _search(r"shared=(\d+)", text), "dense_layers": _search(r"dense_first=(-?\d+)", text),
    }  # fmt: skip
    return _row(row | extra, MEMORY_CASES, measured, observed=row["observed"])


def _simulator_row(row: dict[str, str]) -> TruthRow:
    measured = _numbers(
        peak_bytes=_gib(row["measured_peak_alloc_gib"]),
        reserved_bytes=_gib(row["measured_peak_reserved_gib"]),
        first_stage_bytes=_gib(row["measured_alloc_stage_first_gib"]),
        last_stage_bytes=_gib(row["measured_alloc_stage_last_gib"]),
        step_s=number(row["measured_step_s"]),
    )
    return _row(row, SIMULATOR_ROWS, measured, usable=row["truth_kind"] != "paper_analytic_memory")


def _row(
    row: dict[str, str], kind: str, measured: dict[str, float], *, observed: str = "", usable: bool = True
) -> TruthRow:
    named = next((shape for name, shape in _NAMED.items() if row["model"].lower().startswith(name)), None)
    assumed: set[str] = set()
    if named is not None and not row["hidden"]:
        row = {**row, **named}
        assumed.add("shape")
    cell = cells(row)
    notes = row.get("notes", "")
    flags = flags_of(row)
    missing: list[str] = []
    model = _model(cell, row, missing)
    framework = _framework(row["framework"])
    workload = _workload(cell, row, framework, notes, assumed)
    strategy = None
    if model is not None and workload is not None:
        strategy = _strategy(cell, row, model, notes, flags, assumed, missing)
        if strategy is not None:
            batch = strategy.dp * strategy.micro_batch_size * strategy.micro_batches
            workload = replace(workload, global_batch=batch)
    peaks, statics = stage_values(notes)
    gib = float(2**30)
    return TruthRow(
        case_id=row["case_id"], kind=kind, framework_text=row["framework"], generation=_generation(row["framework"]),
        hardware=row["hardware"], devices=cell.get("devices", 0) or cell.get("n_devices", 0),
        devices_per_node=cell.get("devices_per_node", 8), model=model, workload=workload, strategy=strategy,
        device_bytes=(number(row.get("device_gib", "") or row.get("device_memory_gib", "")) or 0.0) * gib,
        measured=measured, observed=observed, stage_peak_bytes=tuple(v * gib for v in peaks),
        stage_static_bytes=tuple(v * gib for v in statics), flags=flags,
        switches=tuple(row.get("switches", "").split()), options=options_of(row, notes),
        assumed=frozenset(assumed), missing=tuple(missing), usable=usable, confidence=row.get("confidence", ""),
        source=row["source"], notes=notes,
    )  # fmt: skip


def _model(cell: dict[str, int], row: dict[str, str], missing: list[str]) -> Model | None:
    needed = [name for name in ("hidden", "layers", "heads", "ffn") if not cell.get(name)]
    if needed:
        missing.extend(needed)
        return None
    layers, experts = cell["layers"], cell.get("experts", 0)
    if experts and not cell.get("moe_ffn"):
        known = next((v for k, v in _EXPERTS.items() if k in row["model"].lower().replace("_", "-")), None)
        if known is not None:
            cell |= dict(zip(("moe_ffn", "shared_expert_ffn", "dense_layers"), known, strict=True))
    dense = layers
    if experts:
        dense = max(0, cell.get("dense_layers", cell.get("first_dense_layers", 0)))
    first: LayerKind = "dense"
    rest: LayerKind = "moe"
    kinds = (first,) * min(dense, layers) + (rest,) * max(0, layers - dense)
    moe = None
    if "moe" in kinds:
        width = cell.get("moe_ffn") or cell["ffn"]
        shared = cell.get("shared_expert_ffn", 0) or cell.get("shared", 0) * width
        moe = Moe(experts=experts, topk=cell["topk"], expert_ffn=width, shared_ffn=shared)
    name = row["model"].lower()
    gated = (
        row.get("gated_mlp")
        or row.get("gated_ffn")
        or ("0" if re.search(r"gpt(?!-oss)|bloom|pangualpha|galactica", name) else "1")
    )
    vocab = cell.get("vocab", 32000)
    bias = gated == "0"
    qkv_bias = bias or "qwen2" in name or "qwen1.5" in name
    return Model(
        name=row["model"], family=name.split("-")[0].split("_")[0], hidden=cell["hidden"], ffn=cell["ffn"], vocab=vocab,
        attention=_attention(cell, name, qkv_bias=qkv_bias, qk_norm="qwen3" in name, bias=bias),
        layer_kinds=kinds, moe=moe, gated_mlp=gated != "0", mlp_bias=bias, norm_bias=bias, source=row["source"],
        tied_embeddings=_tied(row, name), learned_positions=cell.get("seq", 0) if "gpt2" in name else 0,
    )  # fmt: skip


def _tied(row: dict[str, str], name: str) -> bool:
    if row.get("framework", "").startswith("Megatron") and row.get("gated_mlp") == "0":
        return True
    return bool(re.search(r"gpt3|gpt2|pangualpha|bloom|qwen2\.?5?[_-]?(0|1)[p.]?5|0point5b|gemma|minicpm", name))


def _attention(cell: dict[str, int], name: str, *, qkv_bias: bool, qk_norm: bool, bias: bool) -> Attention:
    heads = cell["heads"]
    compact = name.replace("_", "-")
    latent = next((sizes for key, sizes in _LATENT.items() if key in compact), None)
    latent = latent if "coder" not in name and "deepseek-33b" not in compact and cell.get("experts") else None
    if cell.get("kv_lora_rank") or latent is not None:
        read = tuple(
            cell.get(k, 0) for k in ("q_lora_rank", "kv_lora_rank", "qk_nope_dim", "qk_rope_dim", "v_head_dim")
        )
        q_lora, kv_lora, nope, rope, value = read if read[1] else latent or read
        return Attention(
            kind="mla", heads=heads, kv_heads=heads, head_dim=nope + rope, v_head_dim=value, q_lora_rank=q_lora,
            kv_lora_rank=kv_lora, qk_nope_dim=nope, qk_rope_dim=rope,
        )  # fmt: skip
    dim = cell.get("head_dim") or (128 if qk_norm else cell["hidden"] // heads)
    return Attention(
        heads=heads, kv_heads=cell.get("kv_heads") or heads, head_dim=dim, v_head_dim=dim, qkv_bias=qkv_bias,
        output_bias=bias, qk_norm=qk_norm,
    )  # fmt: skip


def _framework(text: str) -> str:
    lower = text.lower()
    if "mindformers" in lower:
        return "mindformers-legacy"
    if any(word in lower for word in ("mindspeed", "modellink", "ascendspeed", "huawei")):
        return "mindspeed"
    return "megatron"


def _generation(text: str) -> str:
    match = re.search(r"(\b[rv]?\d[\w.]*|\bdev\b)", re.sub(r"\(.*?\)", "", text))
    return match[1] if match else ""


def _workload(
    cell: dict[str, int], row: dict[str, str], framework: str, notes: str, assumed: set[str]
) -> Workload | None:
    seq = cell.get("seq", 0)
    if not seq:
        assumed.add("seq")
        seq = 2048
    half = "float16" if "fp16" in row.get("precision", "") or row.get("param_dtype") == "fp16" else "bfloat16"
    params, master = half, True
    if not frameworks.of(framework).master_copies:
        master = False
        usual = "float32" if row.get("optimizer", "") == "AdamW" else half
        params = row.get("params_dtype") or _search(r"param_init (\w+)", notes) or usual
    if "fp32 params" in row.get("precision", ""):
        params, master = "float32", False
    grads = half if half == "float16" and "fp32" not in row.get("grad_dtype", "") else "float32"
    if re.search(r"InternEvo|MosaicML", row["framework"]):
        grads = half  # reduced in the type of the parameters
    grads = row.get("grads_dtype") or grads
    bf16_states = "bf16 states" in row.get("optimizer", "")
    return Workload(
        seq=seq, global_batch=max(1, cell.get("gbs", 0) or 1), params_dtype=params, compute_dtype=half,
        states_dtype="bfloat16" if bf16_states else "float32", master_weights=master and not bf16_states,
        grads_dtype="bfloat16" if bf16_states else grads, framework=framework,  # type: ignore[arg-type]
        flash_attention=not _unfused(row),
    )  # fmt: skip


def _unfused(row: dict[str, str]) -> bool:
    """Whether attention materialises its scores.

    Rows that say nothing: published GPT-2, GPT-NeoX, GPT-J and OPT code has no fused attention, nor have V100 cards,
    nor did attention with sinks (GPT-OSS) have a fused kernel when its row was reported.
    """
    if row.get("attention") in {"flash", "unfused"}:
        return row["attention"] == "unfused"
    said = row.get("flash_attention")
    if said in {"0", "1"} or "attn_kernel" in row:
        return said == "0" or "unfused" in row.get("attn_kernel", "")
    text = f"{row['model']} {row['hardware']} {row.get('framework', '')}"
    old = re.search(r"GPT|V100|Galactica", text) is not None
    return old or "sdpa attention" in row.get("source", "")


def _strategy(
    cell: dict[str, int], row: dict[str, str], model: Model, notes: str, flags: frozenset[str],
    assumed: set[str], missing: list[str],
) -> Strategy | None:  # fmt: skip

    degrees = {name: cell.get(name, 0) for name in ("tp", "pp", "dp", "cp", "ep")}
    devices = cell.get("devices", 0) or cell.get("n_devices", 0)
    for name in ("cp", "ep"):
        degrees[name] = degrees[name] or 1
    known = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if not degrees["dp"] and known and devices and devices % known == 0:
        degrees["dp"] = devices // known
    if not degrees["dp"] and known:
        degrees["dp"] = 1
        assumed.add("dp")
    if devices and known * degrees["dp"] * degrees["ep"] == devices > known * degrees["dp"]:
        degrees["dp"] *= degrees["ep"]  # a row that counts expert-parallel ranks beside dp
    absent = [name for name, value in degrees.items() if not value]
    if absent:
        missing.extend(absent)
        return None
    mbs = cell.get("mbs", 0)
    if not mbs:
        mbs = 1
        assumed.add("mbs")
    dp, pp = degrees["dp"], degrees["pp"]
    micro = cell.get("gbs", 0) // (dp * mbs) if cell.get("gbs") else 0
    if not micro or cell["gbs"] % (dp * mbs):
        micro = cell.get("num_microbatches", 0) or cell.get("micro_batch_num", 0) or 2 * pp
        assumed.add("micro_batches")
    layers = layers_per_chunk(row, notes, model.layers, pp)
    per_stage = tuple(sum(chunk[s] for chunk in layers) for s in range(pp))
    full, selective = recompute_layers(row["recompute"], per_stage, len(layers), flags, assumed)
    ulysses = cell.get("cp_ulysses", 0) or (degrees["cp"] if _is_ulysses(row, notes) else 1)
    zero, shard = _zero(row["zero"] if "zero" in row else row["zero_stage"], degrees, assumed)
    shard = cell.get("optimizer_shard", 0) or shard
    sequence = row.get("sequence_parallel", row.get("seq_parallel", ""))
    sequence_parallel = sequence == "1" if sequence else ("sequence-parallel" in notes or degrees["tp"] > 1)
    vpp = len(layers)
    etp = _expert_parts(cell, row, degrees, flags) if model.moe else 1
    return Strategy(
        **degrees, vpp=vpp, etp=etp, micro_batch_size=mbs, micro_batches=micro, ulysses_degree=ulysses,
        cp_algorithm="ulysses" if ulysses == degrees["cp"] > 1 else "hybrid" if ulysses > 1 else "ring",
        sequence_parallel=sequence_parallel and degrees["tp"] > 1, zero_level=zero, optimizer_shard=shard,
        swap_optimizer="offload" in flags or "swap-optimizer" in flags,
        schedule=_schedule(notes + row["framework"], vpp),
        layers=layers, recompute_full=full, recompute_selective=selective,
    )  # fmt: skip


def _expert_parts(cell: dict[str, int], row: dict[str, str], degrees: Mapping[str, int], flags: frozenset[str]) -> int:
    """Ranks that share each expert: the stated number, 1 where a script sets it, else the framework's own.

    ms-swift sets 1 where its user sets nothing (``megatron_args.py``).  Where a framework's own number asks for more
    ranks than the row has, its experts were whole.
    """
    if cell.get("etp"):
        return cell["etp"]
    if "ms-swift" in row["framework"]:
        return 1
    usual = default_etp(_framework(row["framework"]), experts=True, tp=degrees["tp"])
    ranks = degrees["dp"] * degrees["cp"] * degrees["tp"]
    return 1 if "expert-tensor-parallel" in flags or ranks % (degrees["ep"] * usual) else usual


def _schedule(text: str, vpp: int) -> str:
    if vpp == 1:
        return "1f1b"
    return "zero_bubble_v" if vpp == 2 and "dualpipev" in text.lower() else "interleaved"


def _is_ulysses(row: dict[str, str], notes: str) -> bool:
    text = (notes + row["model"] + row["case_id"]).lower()
    # SimuMax's runs exchange heads: "a2a" in the table of its simulator rows, not repeated in that of memory cases
    return "ulysses" in text or "simumax" in text or row.get("cp_comm") == "a2a"


def _zero(text: str, degrees: Mapping[str, int], assumed: set[str]) -> tuple[int, int]:
    lower = text.lower()
    group = degrees["dp"] * degrees["cp"]
    if lower in {"", "unknown"}:
        assumed.add("zero")  # off unless asked for, in every framework here
        return 0, 1
    if "optimizer" in lower and "parallel" in lower:
        return 1, group
    match = re.search(r"([0-3])", lower)
    level = int(match[1]) if match else 0
    return level, group if level else 1


def _search(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _gib(text: str) -> float | None:
    return _scaled(text, float(2**30))


def _scaled(text: str, scale: float) -> float | None:
    value = number(text)
    return None if value is None else value * scale


def _numbers(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
