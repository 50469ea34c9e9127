"""The tables of docs/hardware.md agree with the profiles and constants."""

from pathlib import Path

import pytest

from planner.cluster.load import data_directory, hardware, hardware_names
from planner.cluster.rates import DEFAULTS

DOC = (data_directory("hardware_profiles").parent / "docs" / "hardware.md").read_text()
ROWS = {cells[0]: cells for cells in ([c.strip() for c in r.strip("| ").split("|")] for r in DOC.splitlines()) if cells}


@pytest.mark.parametrize("name", hardware_names())
def test_profile_table(name):
    _, _, bf16, fp16, memory, usable, rate, node, link, port = ROWS[name]
    h = hardware(name)
    peaks = h.device.peak_flop_per_s
    assert (bf16 == "-") == ("bfloat16" not in peaks)
    assert float(bf16.replace("-", "0")) == pytest.approx(peaks.get("bfloat16", 0.0) / 1e12, abs=0.05)
    assert float(fp16) == pytest.approx(peaks["float16"] / 1e12, abs=0.05)
    assert float(memory) == h.device.hbm_bytes / 2**30
    assert float(usable) == pytest.approx(h.device.usable_bytes / 2**30, abs=0.051)
    assert float(rate) == h.device.hbm_bytes_per_s / 1e9
    assert node.startswith(f"{h.devices_per_node}, ")
    assert h.node.kind in node
    assert (float(link), float(port)) == (h.node.link_bytes_per_s / 1e9, h.nic_bytes_per_s / 1e9)


@pytest.mark.parametrize(
    ("row", "keys"),
    [
        (
            "link share, all-gather / reduce-scatter / all-to-all",
            ("link_frac_allgather", "link_frac_reducescatter", "link_frac_alltoall"),
        ),
        ("port share, collectives / send", ("nic_frac", "nic_frac_sendrecv")),
        (
            "start-up, all-gather / reduce-scatter / all-reduce / all-to-all / send",
            tuple(f"start_s_{op}" for op in ("allgather", "reducescatter", "allreduce", "alltoall", "sendrecv")),
        ),
    ],
)
def test_constants_table(row, keys):
    shown = [float(part.split()[0]) for part in ROWS[row][1].split(" / ")]
    scale = 1e6 if "start" in row else 1
    assert shown == [pytest.approx(DEFAULTS["a2"][key].value * scale, rel=0.02) for key in keys]


def test_example_profile_loads(tmp_path: Path):
    example = DOC.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "my-cluster.yaml").write_text(example)
    own = hardware(tmp_path / "my-cluster.yaml")
    assert (own.name, own.node, own.device.peak("bfloat16")) == ("my-cluster", hardware("910B3").node, 294.912e12)
