"""An orchestrator: takes a job apart into three tasks, two of them side by side, and one that uses what they found.

No model is asked which tool is meant: each task says it exactly.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

from client_1_0 import VERSION, message, run
from talk import ask, follow, hub_address


def main(url: str, goal: str) -> None:
    """Do the whole job."""
    topics = [f"{goal} in the north", f"{goal} in the south"]
    print(f"job: a report on {goal}")
    with ThreadPoolExecutor() as pool:
        surveys = list(pool.map(lambda topic: survey(url, topic), topics))
    print(publish(url, f"A report on {goal}", surveys))


def survey(url: str, topic: str) -> dict:
    """One task of the job: follow it to its end."""
    for told in follow(url, "SendStreamingMessage", run("workshop.survey", topic=topic), **VERSION):
        match told:
            case {"task": {"id": id}}:
                task = id
                print(f"task {id[:8]} begins: {topic}")
            case {"statusUpdate": {"status": {"message": {"parts": [{"text": text}, *_]}}}}:
                print(f"task {task[:8]} … {text}")
    return ask(url, "GetTask", {"id": task}, **VERSION)


def publish(url: str, title: str, surveys: list[dict]) -> str:
    """The last task: it refers to those before it, and is asked for a signature."""
    findings = [found["artifacts"][0]["parts"][0]["text"] for found in surveys]
    said = run("workshop.publish", title=title, findings=findings)
    said["message"]["referenceTaskIds"] = [found["id"] for found in surveys]
    task = ask(url, "SendMessage", said, **VERSION)["task"]
    print(f"task {task['id'][:8]} asks: {task['status']['message']['parts'][0]['text']}")
    answer = message({"signed_by": "the orchestrator"}, taskId=task["id"])
    task = ask(url, "SendMessage", {"message": answer}, **VERSION)["task"]
    return f"task {task['id'][:8]} is done: {task['artifacts'][0]['parts'][0]['text']}"


if __name__ == "__main__":
    main(hub_address(), sys.argv[2] if len(sys.argv) > 2 else "otters")
