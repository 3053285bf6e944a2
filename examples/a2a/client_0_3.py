"""A client of A2A 0.3: runs a tool that asks back, and answers."""

import uuid

from talk import ask, get, hub_address


def send(url: str, data: dict, **more: str) -> dict:
    """Send a message with one data part, and return the task that it belongs to."""
    part = {"kind": "data", "data": data}
    message = {"kind": "message", "messageId": uuid.uuid4().hex, "role": "user", "parts": [part], **more}
    return ask(url, "message/send", {"message": message, "configuration": {"blocking": True}})


def main(url: str) -> None:
    """Say what comes back."""
    card = get(url, "/.well-known/agent-card.json")
    print(f"{card['name']} speaks {card['protocolVersion']} at {card['url']}")

    findings = {"title": "Rivers", "findings": ["otters live there", "beavers too"]}
    task = send(url, {"tool": "workshop.publish", "arguments": findings})
    print(f"{task['status']['state']}: {task['status']['message']['parts'][0]['text']}")

    task = send(url, {"signed_by": "Ada"}, taskId=task["id"])
    print(f"{task['status']['state']}: {task['artifacts'][0]['parts'][0]['text']}")


if __name__ == "__main__":
    main(hub_address())
