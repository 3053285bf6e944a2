"""`python -m fuzz [--seconds N] [--jobs N] [TARGET …]`: each target for so long, guided by what its inputs reach.

Each runs in a process of its own, since libFuzzer ends the one that it runs in. It begins with the inputs that are kept
in `fuzz/corpus`; what makes a target fail is written to `fuzz/findings`, and the exit code is 1. With `--keep`, new
inputs that reach code which none did before are added to the corpus.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fuzz.targets import CORPUS, NAMES

FOLDER = Path(__file__).parent
FINDINGS = FOLDER / "findings"
LENGTH_MAX = 4096
INPUT_SECONDS = 25


def main() -> int:
    """Run what the words say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="add what reaches more to the corpus")
    parser.add_argument("--jobs", type=int, default=1, help="targets at once")
    words = parser.parse_args()
    if unknown := sorted(set(words.targets) - set(NAMES)):
        parser.error(f"unknown targets {', '.join(unknown)}; known are {', '.join(NAMES)}")
    FINDINGS.mkdir(exist_ok=True)
    names = words.targets or NAMES
    with ThreadPoolExecutor(words.jobs) as pool:
        stood = pool.map(partial(_run, seconds=words.seconds, keeps=words.keep), names)
    failed = [name for name, is_well in zip(names, stood, strict=True) if not is_well]
    print(f"fuzz: {', '.join(failed)} failed; see {FINDINGS}" if failed else "fuzz: nothing was found")
    return 1 if failed else 0


def _run(name: str, seconds: int, *, keeps: bool) -> bool:
    """Whether a target stood for so long; what it said is shown if it did not."""
    with tempfile.TemporaryDirectory() as scratch:
        grown = Path(scratch) / "corpus"
        shutil.copytree(CORPUS / name, grown)
        words = [
            sys.executable, "-m", "fuzz.run", name, str(grown), f"-max_total_time={seconds}", f"-max_len={LENGTH_MAX}",
            f"-timeout={INPUT_SECONDS}", f"-artifact_prefix={FINDINGS}/{name}-", "-verbosity=1", "-print_final_stats=1",
        ]  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
        said = done.stdout + done.stderr
        runs = next((line.split()[1] for line in said.splitlines() if "number_of_executed_units" in line), "?")
        print(f"{name}: {runs} inputs in {seconds} s, {'well' if not done.returncode else 'FAILED'}", flush=True)
        if done.returncode:
            print(said[said.find("Uncaught Python exception") :][:6000])
        elif keeps:
            _merge(name, grown)
    return not done.returncode


def _merge(name: str, grown: Path) -> None:
    words = [sys.executable, "-m", "fuzz.run", name, str(CORPUS / name), str(grown), "-merge=1"]
    subprocess.run(words, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
