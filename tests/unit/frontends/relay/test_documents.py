"""The documents that programs know of the original, with what is ours beside them."""

from __future__ import annotations

from isthmus.frontends.relay.documents import Counts, bad_key, health, index
from isthmus.model.names import ServerName
from isthmus.model.relay import DialledServer, RelayDevice

CALC = DialledServer(
    "my_agent", "calculator", ServerName("my_agent_calculator"), "ready", 10.0, ("add", "sub"), "Calculator 3.4.10"
)
WEATHER = DialledServer(
    "my_agent", "weather", ServerName("my_agent_weather"), "away", 20.0, ("weather",), reason="it is not connected"
)
ROBOT = RelayDevice("d1", "my_agent", 30.0)


def test_the_index_says_that_it_runs_and_has_no_error() -> None:
    assert index("1.2.3") == {
        "result": {"message": "MCP Endpoint Server", "version": "1.2.3", "status": "running"},
        "id": None,
        "jsonrpc": "2.0",
    }


def test_a_bad_key_is_told_as_the_original_does() -> None:
    error = {"code": -32004, "message": "密钥验证失败", "data": {"details": "提供的密钥无效或缺失"}}
    assert bad_key() == {"result": None, "error": error, "id": None, "jsonrpc": "2.0"}
    assert "success" not in str(bad_key())


def test_the_statistics_are_the_originals_with_ours_beside_them() -> None:
    told = health([CALC, WEATHER], [ROBOT, ROBOT], Counts(1, 4, 9, 12.3456, "1.2.3"))
    info = {"title": "Calculator 3.4.10", "name": "my_agent_calculator", "state": "ready", "since": 10.0}
    described = {"tools_count": 2, "tools": ("add", "sub"), "server_info": info}
    assert told["result"]["status"] == "success"
    assert told["result"]["connections"] == {
        "mcp_server_connections": 1,
        "robot_connections": 2,
        "total_connections": 3,
        "robot_connections_by_agent": {"my_agent": 2},
        "mcp_servers": {"my_agent": {"calculator": described}},
        "total_tools": 2,
        "multi_server_support": True,
        "available_agents": ["my_agent"],
    }
    away = {"weather": {"since": 20.0, "reason": "it is not connected", "tools_count": 1}}
    own = {"version": "1.2.3", "away": {"my_agent": away}, "calls": 4, "tasks": 9, "uptime": 12.346}
    assert told["result"]["isthmus"] == own
    assert told.keys() == {"result", "id", "jsonrpc"}
