"""Shell words that stay words, whatever is in them."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Sequence
from typing import Final

from planner.errors import EmitError

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]{0,252}[A-Za-z0-9])?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def quoted(text: str) -> str:
    """`text` as one shell word.

    >>> quoted("data set/$(reboot)"), quoted("plain.yaml")
    ("'data set/$(reboot)'", 'plain.yaml')
    """
    return shlex.quote(text)


def check_path(path: str, what: str) -> str:
    """A path that can stand in emitted files.

    Raises
    ------
    EmitError
        It holds control characters (a line break would end its line in a script).
    """
    found = _CONTROL.search(path)
    if found:
        raise EmitError(f"{what} {path!r} holds the control character {found[0]!r}; give a path without line breaks.")
    return path


def check_host(name: str, where: str = "host") -> str:
    """A host name or address.

    Raises
    ------
    EmitError
        Characters that no host name has.
    """
    if not _HOST.fullmatch(name):
        raise EmitError(f"{where}: {name!r} is not a host name or address; legal: letters, digits, dot, hyphen, colon.")
    return name


def read_hosts(text: str, source: str = "hosts") -> tuple[str, ...]:
    r"""Hosts of a hosts file: one a line, in rank order; ``#`` starts a comment, words behind the host are ignored.

    Raises
    ------
    EmitError
        A line that is not a host name, a host given twice, or none at all.

    >>> read_hosts("10.0.0.1  # first\n\n10.0.0.2 slots=8\n")
    ('10.0.0.1', '10.0.0.2')
    """
    hosts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        name = check_host(words[0], f"{source}, line {number}")
        if name in hosts:
            raise EmitError(f"{source}, line {number}: host {name} is listed twice.")
        hosts.append(name)
    if not hosts:
        raise EmitError(f"{source}: no host found; write one host a line, in rank order.")
    return tuple(hosts)


def read_devices(text: str, source: str = "devices") -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    r"""Hosts and device addresses of a file with one node a line: its host, then the address of each of its devices.

    Raises
    ------
    EmitError
        A word that is no host name or address, or something given twice.

    >>> read_devices("node-1 10.1.0.1 10.1.0.2  # two cards\nnode-2 10.1.1.1 10.1.1.2\n")
    (('node-1', 'node-2'), (('10.1.0.1', '10.1.0.2'), ('10.1.1.1', '10.1.1.2')))
    """
    hosts, addresses, seen = read_hosts(text, source), [], set[str]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        for word in words[1:]:
            try:
                ipaddress.ip_address(word)
            except ValueError:
                raise EmitError(
                    f"{source}, line {number}: {word!r} is no network address; write the host, then the address of "
                    "each of its devices (hccn_tool -i N -ip -g shows it)."
                ) from None
            if word in seen:
                raise EmitError(f"{source}, line {number}: device address {word} is listed twice.")
            seen.add(word)
        if words:
            addresses.append(tuple(words[1:]))
    return hosts, tuple(addresses)


def script(lines: Sequence[str]) -> str:
    """A bash script that stops at the first error."""
    return "\n".join(["#!/usr/bin/env bash", *lines]) + "\n"
