"""A client of the AgentVault dialect: begins a task, and hears its result by a stream of named events."""

from talk import ask, follow, get, hub_address


def main(url: str) -> None:
    """Say what comes back."""
    card = get(url, "/agent-card.json")
    skills = {skill["id"]: skill["description"] for skill in card["skills"]}
    print(f"{card['name']}: {skills['mcp.execute_tool']}")

    call = {"target_mcp_server_id": "workshop", "tool_name": "measure", "arguments": {"text": "one two three"}}
    part = {"type": "data", "content": call, "mediaType": "application/json"}
    task = ask(url, "tasks/send", {"message": {"role": "user", "parts": [part]}})["id"]
    for told in follow(url, "tasks/sendSubscribe", {"id": task}):
        match told:
            case {"message": {"parts": [{"content": {"success": True, "mcp_result": result}}, *_]}}:
                print(f"  {result['structuredContent']}")
            case {"state": state}:
                print(f"  {state}")


if __name__ == "__main__":
    main(hub_address())
