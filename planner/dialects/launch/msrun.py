"""Launch files: msrun on each node, MindSpore's DryRun for each pipeline stage, a rank table on request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Final

from planner.dialects.launch import environment
from planner.dialects.records import File, Placeholder, Settings
from planner.dialects.text.shell_write import check_host, quoted, script
from planner.errors import EmitError
from planner.plan import Plan
from planner.version import __version__

PORT: Final = 8118
_CLUSTER_TIMEOUT_S: Final = 7200
#: Up to here every node gets a script of its own even when the hosts are not known yet.
_NODE_SCRIPTS: Final = 64
#: Line by which a file of an earlier plan is known.
MARK: Final = f"# Written by planner {__version__}."
HERE: Final = 'here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)'


def template(dialect: str, name: str) -> str:
    """Text of a file that a dialect emits as it is."""
    return (resources.files(f"planner.dialects.{dialect}") / f"{name}.txt").read_text(encoding="utf-8")


def files(plan: Plan, settings: Settings, *, program: Sequence[str], dryrun: bool = True) -> list[File]:
    """All launch files of a MindSpore job.

    Parameters
    ----------
    plan : Plan
    settings : Settings
        Its hosts, when given, must be as many as the plan has nodes.
    program : sequence of str
        Script beside the launch files and its arguments; words are taken literally.
    dryrun : bool
        Also a script for MindSpore's DryRun, which exists in graph mode only.

    Raises
    ------
    EmitError
        Devices do not fill nodes, or the hosts do not match them.
    """
    hosts = checked_hosts(plan, settings)
    result = [
        launch_script(plan, hosts, program, table=bool(settings.device_addresses), notes=hosts_note(plan, settings))
    ]
    if settings.device_addresses:
        result.append(rank_table(plan, settings.device_addresses, hosts))
    if dryrun:
        result.append(dryrun_script(plan, program))
    if plan.nodes > 1 and (hosts or plan.nodes <= _NODE_SCRIPTS):
        result += [node_script(plan, hosts, node) for node in range(plan.nodes)]
    return result


def checked_hosts(plan: Plan, settings: Settings) -> tuple[str, ...]:
    """Hosts of the job, or none when they are not known."""
    if plan.nodes > 1 and plan.devices % plan.devices_per_node:
        raise EmitError(
            f"{plan.devices} devices do not fill whole nodes of {plan.devices_per_node}; "
            f"msrun starts the same number of workers on every node."
        )
    hosts = tuple(check_host(host) for host in settings.hosts)
    if hosts and len(hosts) < plan.nodes:
        raise EmitError(
            f"{len(hosts)} hosts are listed, but {plan.devices} devices need {plan.nodes} nodes of "
            f"{plan.devices_per_node}; list {plan.nodes} hosts."
        )
    return hosts[: plan.nodes]


def hosts_note(plan: Plan, settings: Settings) -> tuple[str, ...]:
    """What is said of hosts that the plan does not need."""
    spare = settings.hosts[plan.nodes :]
    if not spare:
        return ()
    first = f"first {plan.nodes}" if plan.nodes > 1 else "first"
    return (
        f"{len(settings.hosts)} hosts are listed, {plan.devices} devices need {plan.nodes}: the {first} of them "
        f"{'are' if plan.nodes > 1 else 'is'} used, {', '.join(spare[:3])}{' and more' if len(spare) > 3 else ''} not.",
    )


def launch_script(
    plan: Plan, hosts: Sequence[str], program: Sequence[str], *, table: bool = False, notes: Sequence[str] = ()
) -> File:
    """``launch.sh``: starts the workers of one node."""
    single = plan.nodes == 1
    local = min(plan.devices, plan.devices_per_node)
    usage = "bash launch.sh" if single else "bash launch.sh NODE_RANK [MASTER_ADDR]"
    lines = [
        f"# Starts the {local} workers of one node; {plan.devices} devices, {plan.nodes} nodes.  Usage: {usage}",
        MARK,
        "set -euo pipefail",
        HERE,
        "",
        *environment.exports(environment.mindspore(plan)),
        "",
        *([] if single else _node_arguments(plan, hosts)),
        *_task(program),
        "",
        "exec msrun \\",
        f"  --worker_num={plan.devices} --local_worker_num={local} \\",
        *([] if single else ['  --master_addr="$master_addr" --node_rank="$node_rank" \\']),
        f'  --master_port="${{MASTER_PORT:-{PORT}}}" --log_dir="${{LOG_DIR:-$here/log}}" \\',
        f"  --bind_core=True --join=True --cluster_time_out={_CLUSTER_TIMEOUT_S} \\",
        *(['  --rank_table_file="$here/rank_table.json" \\'] if table else []),
        '  "${task[@]}"',
    ]
    placeholder = Placeholder(file="launch.sh", where="MASTER_ADDR", what="address of node 0 (argument or environment)")
    needed = () if single or hosts else (placeholder,)
    return File(name="launch.sh", text=script(lines), executable=True, placeholders=needed, notes=notes)


def _node_arguments(plan: Plan, hosts: Sequence[str]) -> list[str]:
    master = quoted(hosts[0]) if hosts else ""
    return [
        'node_rank="${1:-${NODE_RANK:-}}"',
        f'master_addr="${{2:-${{MASTER_ADDR:-{master}}}}}"',
        'if [[ ! "$node_rank" =~ ^[0-9]+$ ]] || (( 10#$node_rank >= ' + str(plan.nodes) + " )); then",
        f'  echo "launch.sh: give the node rank, 0 to {plan.nodes - 1}" >&2; exit 2',
        "fi",
        'if [[ ! "$master_addr" =~ ^[A-Za-z0-9][A-Za-z0-9.:-]*$ ]]; then',
        '  echo "launch.sh: set MASTER_ADDR to the address of node 0" >&2; exit 2',
        "fi",
        "",
    ]


def _task(program: Sequence[str]) -> list[str]:
    first, *rest = program
    words = " ".join([f'"$here"/{quoted(first)}', *(f'"$here"/{quoted(word)}' for word in rest)])
    return [f"task=({words})"]


def node_script(plan: Plan, hosts: Sequence[str], node: int) -> File:
    """``node_<i>.sh``: what to start on node i."""
    first = node * plan.devices_per_node
    where = f" (host {hosts[node]})" if hosts else ""
    last = first + plan.devices_per_node - 1
    lines = [
        f"# Node {node} of {plan.nodes}{where}: ranks {first} to {last}",
        MARK,
        "set -euo pipefail",
        HERE,
        f'exec bash "$here/launch.sh" {node}' + (f" {quoted(hosts[0])}" if hosts else ' "${MASTER_ADDR:-}"'),
    ]
    return File(name=f"node_{node}.sh", text=script(lines), executable=True)


def dryrun_script(plan: Plan, program: Sequence[str]) -> File:
    """``dryrun.sh``: compiles stages and plans their memory without communication or devices."""
    stages, share = plan.strategy.pp, plan.devices // plan.strategy.pp
    chosen = sorted({0, stages // 2, stages - 1})
    lines = [
        f"# MindSpore DryRun of pipeline stages, one process each: bash dryrun.sh [STAGE ...], 0 to {stages - 1}",
        "# Needs CANN and the training data; `planner dryrun` needs neither.",
        MARK,
        "set -euo pipefail",
        HERE,
        "",
        "# compile for a rank of a cluster that need not exist, and count operator inputs and outputs",
        "export MS_SIMULATION_LEVEL=1",
        f"export RANK_SIZE={plan.devices}",
        "# info level: the memory lines are printed there",
        "export GLOG_v=1",
        "# MindFormers networks do not compile under DryRun with runtime inlining",
        'export MS_DEV_RUNTIME_CONF="inline:false"',
        *_task(program),
        "",
        'log_dir="${LOG_DIR:-$here/dryrun}"',
        'mkdir -p -- "$log_dir"',
        'stages=("$@")',
        f"if (( ${{#stages[@]}} == 0 )); then stages=({' '.join(map(str, chosen))}); fi",
        'for stage in "${stages[@]}"; do',
        f'  if [[ ! "$stage" =~ ^[0-9]+$ ]] || (( 10#$stage >= {stages} )); then',
        f'    echo "dryrun.sh: there is no stage $stage; legal: 0 to {stages - 1}" >&2; exit 2',
        "  fi",
        f"  # {share} ranks hold one stage; its first rank stands for them",
        f"  export RANK_ID=$(( 10#$stage * {share} ))",
        '  log="$log_dir/stage_$stage.log"',
        '  if ! "${PYTHON:-python}" "${task[@]}" --steps 2 >"$log" 2>&1; then',
        '    echo "stage $stage failed; see $log" >&2; exit 1',
        "  fi",
        '  echo "stage $stage (rank $RANK_ID):"',
        '  grep -E "peak memory usage|MOC memory size" -- "$log" || true',
        "done",
    ]
    return File(name="dryrun.sh", text=script(lines), executable=True)


def rank_table(plan: Plan, addresses: Sequence[Sequence[str]], hosts: Sequence[str]) -> File:
    """``rank_table.json`` version 1.0 for tools that still want one; msrun does not need it.

    Parameters
    ----------
    plan : Plan
    addresses : sequence of sequence of str
        Network address of each device of each node (``hccn_tool -i N -ip -g``).
    hosts : sequence of str
        Address of each node.

    Raises
    ------
    EmitError
        Not one address for each device.
    """
    local = min(plan.devices, plan.devices_per_node)
    if len(addresses) != plan.nodes or any(len(node) != local for node in addresses) or len(hosts) < plan.nodes:
        raise EmitError(
            f"a rank table of {plan.devices} devices needs {plan.nodes} hosts with {local} device addresses each; "
            f"given {len(addresses)} with {', '.join(sorted({str(len(node)) for node in addresses}))}."
        )
    servers = []
    for node, (host, devices) in enumerate(zip(hosts, addresses, strict=False)):
        entries = [
            {"device_id": str(i), "device_ip": check_host(ip, "device address"), "rank_id": str(node * local + i)}
            for i, ip in enumerate(devices)
        ]
        servers.append({"server_id": check_host(host), "device": entries, "host_nic_ip": "reserve"})
    body = {"version": "1.0", "server_count": str(plan.nodes), "server_list": servers, "status": "completed"}
    return File(name="rank_table.json", text=json.dumps(body, indent=2) + "\n")
