"""A client of A2A 1.0: reads the card, runs a tool, follows one that takes its time, walks away and comes back."""

import uuid

from talk import ask, follow, get, hub_address

VERSION = {"A2A-Version": "1.0"}


def message(data: dict, **more: str) -> dict:
    """A message with one data part."""
    return {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"data": data}], **more}


def run(tool: str, **arguments: object) -> dict:
    """Say that a tool is to be run."""
    return {"message": message({"tool": tool, "arguments": arguments})}


def main(url: str) -> None:
    """Say what comes back."""
    card = get(url, "/.well-known/agent-card.json")
    print(f"{card['name']}: {', '.join(skill['id'] for skill in card['skills'])}")

    weight = 2**53 + 1  # as a double this would be another number
    task = ask(url, "SendMessage", run("workshop.measure", text="one two three", weight=weight), **VERSION)["task"]
    measured = next(part["data"] for part in task["artifacts"][0]["parts"] if "data" in part)
    print(f"measured: {measured}, exact: {measured['weight'] == 3 * weight}")

    for told in follow(url, "SendStreamingMessage", run("workshop.survey", topic="otters"), **VERSION):
        show(told)

    begun = run("workshop.survey", topic="beavers") | {"configuration": {"returnImmediately": True}}
    task = ask(url, "SendMessage", begun, **VERSION)["task"]
    print(f"walked away from {task['id'][:8]}, which is {task['status']['state']}")
    for told in follow(url, "SubscribeToTask", {"id": task["id"]}, **VERSION):
        show(told)
    print(f"it is {ask(url, 'GetTask', {'id': task['id']}, **VERSION)['status']['state']}")


def show(told: dict) -> None:
    """Say what a stream told."""
    match told:
        case {"statusUpdate": {"status": {"message": {"parts": [{"text": text}, *_]}}}}:
            print(f"  … {text}")
        case {"artifactUpdate": {"artifact": {"parts": [{"text": text}, *_]}}}:
            print(f"  {text}")


if __name__ == "__main__":
    main(hub_address())
