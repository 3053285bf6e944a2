"""What the relay says of itself over HTTP: the documents of the original, with ours beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from isthmus.model.relay import DialledServer, RelayDevice

BAD_KEY = -32004


def index(version: str) -> dict[str, Any]:
    """That it is there."""
    return _result({"message": "MCP Endpoint Server", "version": version, "status": "running"})


def bad_key() -> dict[str, Any]:
    """What is answered to whoever does not know the key; written as the original's readers know it."""
    error = {"code": BAD_KEY, "message": "密钥验证失败", "data": {"details": "提供的密钥无效或缺失"}}
    return {"result": None, "error": error, "id": None, "jsonrpc": "2.0"}


class Counts(msgspec.Struct, frozen=True):
    """What cannot be counted from the lists."""

    connections: int
    """Sockets of servers."""
    calls: int
    tasks: int
    """What the hub does in the background."""
    uptime: float
    version: str


def health(servers: Sequence[DialledServer], devices: Sequence[RelayDevice], counts: Counts) -> dict[str, Any]:
    """The statistics. Servers that are away are not connected, so they are told apart."""
    here = [server for server in servers if server.state != "away"]
    connections = {
        "mcp_server_connections": counts.connections,
        "robot_connections": len(devices),
        "total_connections": counts.connections + len(devices),
        "robot_connections_by_agent": dict(Counter(device.agent for device in devices)),
        "mcp_servers": _by_agent(here, _described),
        "total_tools": sum(len(server.tools) for server in here),
        "multi_server_support": True,
        "available_agents": sorted({server.agent for server in here}),
    }
    own = {
        "version": counts.version,
        "away": _by_agent([server for server in servers if server.state == "away"], _missed),
        "calls": counts.calls,
        "tasks": counts.tasks,
        "uptime": round(counts.uptime, 3),
    }
    return _result({"status": "success", "connections": connections, "isthmus": own})


def _by_agent(servers: Iterable[DialledServer], describe: Any) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {}
    for server in servers:
        told.setdefault(server.agent, {})[server.server_id] = describe(server)
    return told


def _described(server: DialledServer) -> dict[str, Any]:
    info = {"title": server.title, "name": server.name, "state": server.state, "since": round(server.since, 3)}
    return {"tools_count": len(server.tools), "tools": server.tools, "server_info": info}


def _missed(server: DialledServer) -> dict[str, Any]:
    return {"since": round(server.since, 3), "reason": server.reason, "tools_count": len(server.tools)}


def _result(result: dict[str, Any]) -> dict[str, Any]:
    return {"result": result, "id": None, "jsonrpc": "2.0"}
