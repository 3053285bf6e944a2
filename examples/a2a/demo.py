"""The whole scene: a hub, clients of every generation, an orchestrator with a job, and a hub that is killed.

`make demo` runs it.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client_1_0 import VERSION, run
from talk import ask, follow

HERE = Path(__file__).resolve().parent
SCENES = ("client_1_0.py", "client_0_3.py", "client_0_1.py", "client_agentvault.py", "orchestrator.py")


@contextmanager
def hub(state: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A hub on a free port, with everything that lasts in a folder."""
    config = state / "isthmus.toml"
    server = f'command = "{sys.executable}"\nargs = ["{HERE.parent / "workshop_server.py"}"]\n'
    config.write_text(f'[hub]\nstate = "{state}"\n[servers.workshop]\n{server}[a2a]\nname = "Workshop"\n')
    command = [sys.executable, "-m", "isthmus", "serve", "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield address(process), process
        finally:
            process.terminate()


def address(process: subprocess.Popen) -> str:
    """Where it listens, as it says itself."""
    heard = []
    for line in process.stderr or ():
        if "listening" in line and (found := re.search(r"http://[\w.]+:\d+", line)):
            return found.group()
        heard.append(line)
    raise SystemExit(f"the hub did not start:\n{''.join(heard)}")


def say(title: str) -> None:
    """Begin a scene."""
    print(f"\n── {title} {'─' * (76 - len(title))}", flush=True)


def killed(state: Path) -> None:
    """A task whose hub is killed is found again, and says that nobody knows how far its tool came."""
    with hub(state) as (url, process):
        stream = follow(url, "SendStreamingMessage", run("workshop.survey", topic="storms"), **VERSION)
        task = next(stream)["task"]["id"]
        next(stream)
        process.kill()
        print(f"task {task[:8]} runs; the hub is killed")
    with hub(state) as (url, _):
        found = ask(url, "GetTask", {"id": task}, **VERSION)
        print(f"a new hub says of {task[:8]}: {found['status']['state']}")
        print(f"  {found['status']['message']['parts'][0]['text']}")
        listed = ask(url, "ListTasks", {}, **VERSION)
        print(f"and knows of {listed['totalSize']} tasks in all")


def main() -> None:
    """Every scene in turn."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with hub(state) as (url, _):
            for scene in SCENES:
                say(scene)
                subprocess.run([sys.executable, str(HERE / scene), url], check=True)
        say("kill -9")
        killed(state)


if __name__ == "__main__":
    main()
