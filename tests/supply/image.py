"""`make image`: build the image and start a hub in it; without Docker, run the Dockerfile's steps in a clean folder.

The steps run as they are written, with the folders of the image below a temporary one. What that cannot show (the base
images, the user, Node.js) is printed as unchecked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.supply.pins import ROOT

SECONDS = 600.0
PORT = re.compile(r"http://[^/\s\"]+:(\d+)")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a stage."""

    word: str
    rest: str


def stages(text: str) -> dict[str, list[Step]]:
    """The instructions of each stage by its name, those of the stage that it begins with included."""
    found: dict[str, list[Step]] = {}
    current: list[Step] = []
    for line in re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            current = found[name] = [*found.get(base, ())]
        if word and word != "ARG":
            current.append(Step(word, rest.strip()))
    return found


def command_of(steps: list[Step]) -> list[str]:
    """What a container of this stage runs."""
    last = {step.word: step.rest for step in steps}
    words: list[str] = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    return words


def play(steps: list[Step], folder: Path) -> None:
    """Run the RUN and COPY steps of a stage below a folder.

    Raises:
        subprocess.CalledProcessError: a step failed.
    """
    here = folder

    def inside(text: str) -> str:
        return re.sub(r"(?<![\w.])/(opt/isthmus|src|etc/isthmus|var/lib/isthmus|tmp)\b", rf"{folder}/\1", text)

    for step in steps:
        match step.word:
            case "WORKDIR":
                here = Path(inside(step.rest))
                here.mkdir(parents=True, exist_ok=True)
            case "COPY" if not step.rest.startswith("--from"):
                *sources, target = step.rest.split()
                for source in sources:
                    _copy(ROOT / source, here / inside(target), is_folder=target.endswith("/"))
            case "RUN" if "pip" in step.rest or "venv" in step.rest:
                python = folder / "opt" / "isthmus" / "bin" / "python"
                command = re.sub(r"^python -m pip", f"{python} -m pip", inside(step.rest))
                began = time.monotonic()
                subprocess.run(["sh", "-c", command], cwd=here, check=True, timeout=SECONDS)
                print(f"  {time.monotonic() - began:5.1f} s  RUN {step.rest}", flush=True)
            case "RUN":
                print(f"    not run  RUN {step.rest}")
            case _:
                pass


def _copy(source: Path, target: Path, *, is_folder: bool) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    target = target / source.name if is_folder else target
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def answers(words: list[str], folder: Path, env: dict[str, str]) -> str:
    """Start a hub, ask whether it lives, end it, and return its address.

    Raises:
        RuntimeError: it did not start, or did not end well.
    """
    with subprocess.Popen(words, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as hub:
        assert hub.stderr is not None
        said: list[str] = []
        for line in hub.stderr:
            said.append(line)
            if "listening" in line and (found := PORT.search(line)) is not None:
                break
        else:
            raise RuntimeError(f"The hub did not start (exit code {hub.wait()}):\n" + "".join(said))
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/livez", timeout=10) as answer:
            assert answer.status == 200
        hub.send_signal(signal.SIGTERM)
        hub.stderr.read()
        if hub.wait(60) != 0:
            raise RuntimeError(f"The hub ended with {hub.returncode}.")
    return found[0]


def check_steps() -> None:
    """Run the steps of both images, and their command."""
    found = stages((ROOT / "Dockerfile").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        play(found["build"], folder)
        play([step for step in found["stdio"] if "stdio" in step.rest], folder)
        home, config = folder / "var" / "lib" / "isthmus", folder / "etc" / "isthmus"
        home.mkdir(parents=True)
        config.mkdir(parents=True)
        (config / "mcp.json").write_text('{"mcpServers": {}}')
        programs = str(folder / "opt" / "isthmus" / "bin")
        env = {"HOME": str(home), "PATH": os.pathsep.join([programs, os.environ["PATH"]]), "PYTHONSAFEPATH": "1"}
        create = ["isthmus", "token", "create", "me", "--allow", "*"]
        subprocess.run(create, cwd=config, env=env, check=True, stdout=subprocess.DEVNULL, timeout=60)
        address = answers([*command_of(found["slim"]), "--port", "0"], config, env)
        print(f"  {' '.join(command_of(found['slim']))}: answers at {address}")
        subprocess.run([f"{programs}/uvx", "--version"], check=True, timeout=60)
    print("Checked without Docker. Not checked: the base images, the user, the health check, Node.js, compose.yaml.")


def check_with_docker() -> None:
    """Build both images and start the slim one."""
    for target in ("slim", "stdio"):
        subprocess.run(["docker", "build", "--target", target, "-t", f"isthmus:{target}", str(ROOT)], check=True)
    run: Callable[..., subprocess.CompletedProcess[bytes]] = subprocess.run
    run(["docker", "run", "--rm", "isthmus:stdio", "--version"], check=True)
    run(["docker", "run", "--rm", "--entrypoint", "npx", "isthmus:stdio", "--version"], check=True)
    volume = "isthmus-image-check"
    state = ["-v", f"{volume}:/var/lib/isthmus"]
    try:
        run(["docker", "run", "--rm", *state, "isthmus:slim", "token", "create", "me", "--allow", "*"], check=True)
        run(["docker", "run", "-d", "--name", volume, "-p", "127.0.0.1::8765", *state, "isthmus:slim"], check=True)
        port = subprocess.check_output(["docker", "port", volume, "8765"], text=True).rpartition(":")[2].strip()
        for _ in range(100):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        else:
            raise RuntimeError("The container does not answer.")
    finally:
        run(["docker", "rm", "-f", volume], check=False)
        run(["docker", "volume", "rm", volume], check=False)
    print("Built both images; the slim one answers.")


def has_docker() -> bool:
    """Whether images can be built here."""
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    if has_docker():
        check_with_docker()
    else:
        print("There is no Docker daemon: running the Dockerfile's steps in a clean folder.", file=sys.stderr)
        check_steps()
