"""A client of the first A2A, which names its tasks itself: an MCP method of its choice, and a stream."""

import uuid

from talk import ask, follow, get, hub_address


def task(**command: object) -> dict:
    """A task whose message is a command for an MCP server."""
    return {
        "id": uuid.uuid4().hex,
        "message": {"role": "user", "parts": [{"type": "data", "data": {"mcp_target_url": "workshop", **command}}]},
    }


def main(url: str) -> None:
    """Say what comes back."""
    card = get(url, "/.well-known/agent.json")
    print(f"{card['name']}: {card['skills'][0]['name']}")

    listed = ask(url, "tasks/send", task(mcp_method="tools/list", mcp_request_id=7))
    answer = listed["artifacts"][0]["parts"][0]["data"]
    names = [tool["name"] for tool in answer["mcp_result"]["tools"]]
    print(f"answer {answer['mcp_response_id']}: {', '.join(names)}")

    params = {"name": "survey", "arguments": {"topic": "herons"}}
    for told in follow(url, "tasks/sendSubscribe", task(mcp_method="tools/call", mcp_params=params)):
        match told:
            case {"status": {"state": state, "message": {"parts": [{"text": text}, *_]}}}:
                print(f"  {state}: {text}")
            case {"status": {"state": state}}:
                print(f"  {state}")
            case {"artifact": {"parts": [{"data": {"mcp_result": result}}]}}:
                print(f"  {result['content'][0]['text']}")


if __name__ == "__main__":
    main(hub_address())
