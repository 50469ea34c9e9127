"""`planner emit`: hosts, rank table and what is said about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner import plan as plans
from tests.cli.runner import run
from tests.dialects.samples import plan, small


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of two nodes, made the current folder's."""
    monkeypatch.chdir(tmp_path)
    plans.save(plan(small("qwen3"), dp=8, tp=2), tmp_path / "plan.json")
    rows = [" ".join([f"node-{n}", *(f"10.1.{n}.{i}" for i in range(8))]) for n in range(2)]
    (tmp_path / "devices.txt").write_bytes(b"\xef\xbb\xbf# two nodes\r\n" + "\r\n\r\n".join(rows).encode())
    return tmp_path


def test_a_rank_table_on_request(folder):
    answer = run("emit plan.json out --rank-table devices.txt --json")
    assert answer.code == 0, answer.err
    table = json.loads((folder / "out" / "rank_table.json").read_text())
    assert [server["server_id"] for server in table["server_list"]] == ["node-0", "node-1"]
    assert table["server_list"][1]["device"][7] == {"device_id": "7", "device_ip": "10.1.1.7", "rank_id": "15"}
    assert 'launch.sh" 1 node-0' in (folder / "out" / "node_1.sh").read_text()
    assert run("check out").code == 0


def test_spare_hosts_are_named(folder):
    (folder / "hosts.txt").write_text("node-0\nnode-1\nnode-2\n")
    answer = run("emit plan.json out --hosts hosts.txt --rank-table devices.txt")
    assert answer.code == 0, answer.err
    assert "3 hosts are listed, 16 devices need 2" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("--hosts", b"node-1\nnode-0\n", ["hosts.txt", "list different hosts"]),
        ("--hosts", b"node-0\n", ["1 hosts are listed, but 16 devices need 2 nodes of 8; list 2 hosts"]),
        ("--hosts", b"node-0\nnode-0\n", ["hosts.txt, line 2", "listed twice"]),
        ("--hosts", b"node-0 $(x)\nno$(de)\n", ["hosts.txt, line 2", "is not a host name"]),
        ("--hosts", b"\xff\xfen\0", ["--hosts hosts.txt is not UTF-8 text"]),
        ("--hosts", b"#" * 2**21, ["--hosts hosts.txt has more than 1 MiB"]),
        ("--hosts", None, ["--hosts hosts.txt cannot be read"]),
    ],
)
def test_files_that_list_no_hosts(folder, option, content, words):
    if content is not None:
        (folder / "hosts.txt").write_bytes(content)
    answer = run(f"emit plan.json out {option} hosts.txt --rank-table devices.txt")
    assert (answer.code, answer.out) == (2, "")
    for word in words:
        assert word in " ".join(answer.err.split())
    assert not (folder / "out").exists()


def test_device_files_that_do_not_fit(folder):
    (folder / "few.txt").write_text("node-0 10.0.0.1\nnode-1 10.0.0.2\n")
    answer = run("emit plan.json out --rank-table few.txt")
    assert answer.code == 2
    assert "needs 2 hosts with 8 device addresses each; given 2 with 1" in " ".join(answer.err.split())
    assert "cannot be read" in run("emit plan.json out --rank-table nowhere").err
    assert "cannot be read" in run("emit plan.json out --rank-table .").err
