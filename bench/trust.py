"""`python -m bench.trust`: what it costs a call that its caller is known, held to permissions, and written down.

The same hub runs several times over: open and without an audit log, and with all of that, by each kind of credential.
They take turns in short rounds, of which the least disturbed counts for each, since neighbours only ever add to what a
call costs; a cost is the difference to the open hub, of the whole process, the thread that writes the log included.
The parts are timed by themselves as well. Ends with 1 when they cost more than is promised, 2 when that could not be
measured.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import msgspec
from cryptography.hazmat.primitives.asymmetric import ed25519

from bench.__main__ import ASKS_EACH, NotMeasured, Round, measure
from bench.load import WrongAnswer
from bench.messages import Ask, asks, call_body, call_headers
from bench.processes import PORT_LOGGED, PORT_PRINTED, NotStarted, Program
from bench.sample import least_nanoseconds
from bench.scenarios import CALLER, RESULT, SERVER, Silent, Work, hub_with_instant_server
from bench.scenarios import Instant as SentLink
from bench.stage import HUB_MODULE, READY_SECONDS, Scenario, Target, post, wait_until_served
from isthmus.core.audit import START, Fact, RecordEncoder, follow
from isthmus.core.calls.running_call import InFlight
from isthmus.core.journal import OnWritten
from isthmus.identity.jwt import read_keys
from isthmus.identity.jwt_callers import Issuer, Issuers
from isthmus.identity.keys import AccessTokens, KeyRing, credential_of, digest_of
from isthmus.identity.settings import IssuerSettings
from isthmus.model.calls import EVERYTHING, Call, Result
from isthmus.telemetry.audit_writer import Audit
from isthmus.telemetry.call_metrics import CallMetrics

PROMISED_MICROSECONDS = 25.0
"""At most this much CPU for identity, permission and audit of a call, together."""

TOOL = "modern.echo"
KEY = "a-bench-key-that-protects-nothing"
OPEN = "open, audit off"
CONFIG = """
[hub]
state = "state"
audit = "{audit}"

[servers.modern]
url = "http://127.0.0.1:{server}/mcp"
"""
CALLERS = """
[callers.bench]
key = "env:BENCH_KEY"
allow = ["modern.*", "legacy.echo"]
deny = ["modern.forbidden"]
"""
ROUNDS = 60
"""Samples of each part; the least disturbed counts."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One row: how the hub is set up and what callers show."""

    name: str
    audit: str
    credential: str
    """`none`, `key`, `minted` or `token`."""
    is_promised: bool = True


KINDS = (
    Kind(OPEN, "off", "none"),
    Kind("key, audit off", "off", "key", is_promised=False),
    Kind("key, batched", "batched", "key"),
    Kind("minted key, batched", "batched", "minted"),
    Kind("access token, batched", "batched", "token", is_promised=False),
)
"""The first is what the others are compared with. An access token is deciphered at each call, which a key is not."""


# -- the whole hub ---------------------------------------------------------------------------------------------------


def start(held: ExitStack, kind: Kind, server: int, connections: int) -> Target:
    """Start a hub and return it ready to be driven."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    text = CONFIG.format(audit=kind.audit, server=server)
    (folder / "isthmus.toml").write_text(text + (CALLERS if kind.credential in ("key", "token") else ""))
    shown = KEY if kind.credential != "minted" else minted(folder / "isthmus.toml")
    serve = ("serve", "--config", str(folder / "isthmus.toml"), "--host", "127.0.0.1", "--port", "0")
    hub = held.enter_context(Program(HUB_MODULE, *serve, env={"BENCH_KEY": KEY}))
    port = hub.port(PORT_LOGGED, besides=(server,))
    if kind.credential == "token":
        shown = token(port)
    extra = {} if kind.credential == "none" else {"Authorization": f"Bearer {shown}"}
    return ready(Scenario(kind.name, "hub", TOOL), hub, port, extra, connections)


def minted(config: Path) -> str:
    """Have a key made that is kept in the state folder."""
    words = ("token", "create", "bench", "--allow", "modern.*", "--allow", "legacy.echo", "--deny", "modern.forbidden")
    command = [sys.executable, "-m", HUB_MODULE, *words, "--json", "--config", str(config)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=READY_SECONDS)
    given: dict[str, object] = msgspec.json.decode(done.stdout)
    return str(given["key"])


def token(port: int) -> str:
    """Have the hub give a token for the caller's name and key."""
    form = {"grant_type": "client_credentials", "client_id": "bench", "client_secret": KEY}
    headers = {"Host": "127.0.0.1", "Content-Type": "application/x-www-form-urlencoded"}
    _, body = post(port, urlencode(form).encode(), headers, "/oauth/token")
    given: dict[str, object] = msgspec.json.decode(body)
    return str(given["access_token"])


def ready(scenario: Scenario, hub: Program, port: int, extra: Mapping[str, str], connections: int) -> Target:
    """Return once a call succeeds."""
    ask = Ask(call_body(1, TOOL, "ready?", "modern"), 1, "ready?")
    wait_until_served(scenario, hub, port, ask, "/mcp", call_headers(TOOL, "modern", extra))
    asks_of = [
        asks("/mcp", TOOL, "modern", extra, first_id=1 + number * ASKS_EACH, count=ASKS_EACH)
        for number in range(connections)
    ]
    return Target(scenario, hub, port, asks_of)


def least(turns: Sequence[Round]) -> float:
    """Return what a call cost in the round that was disturbed least."""
    return min(turn.cpu_microseconds for turn in turns)


# -- the parts -------------------------------------------------------------------------------------------------------


class Instant:
    """A journal that has written everything at once."""

    def write(self, _documents: object, done: OnWritten, _facts: Sequence[Fact] = ()) -> None:
        done("kept")


def parts() -> dict[str, float]:
    """Return the CPU microseconds of each part by itself."""
    works = {**identities(), **permission(), **audit()}
    costs = least_nanoseconds(list(works.values()), ROUNDS)
    return {name: cost / 1000 for name, cost in zip(works, costs, strict=True)}


def identities() -> dict[str, Work]:
    """Who shows a key, a token of an issuer that was seen before, and an access token of the hub's own."""
    ring = KeyRing([(digest_of(f"a-key-for-caller-{number}"), CALLER) for number in range(100)])
    fields = {b"host": b"127.0.0.1", b"authorization": b"Bearer a-key-for-caller-50"}
    tokens = AccessTokens(lambda: b"x" * 32, ring.holder, time.time)
    given = tokens.make(digest_of("a-key-for-caller-50")).encode()
    issuers, signed = issuer()
    assert issuers.caller_of(signed) is not None
    assert tokens.caller_of(given) is not None
    return {
        "identity: key": lambda: ring.caller_of(credential_of(fields) or b""),
        "identity: JWT seen before": lambda: issuers.caller_of(signed),
        "identity: access token": lambda: tokens.caller_of(given),
    }


def issuer() -> tuple[Issuers, bytes]:
    """An issuer and one of its tokens."""
    private = ed25519.Ed25519PrivateKey.generate()
    public = _base64(private.public_key().public_bytes_raw()).decode()
    jwk = {"kty": "OKP", "crv": "Ed25519", "kid": "1", "alg": "EdDSA", "x": public}
    now = int(time.time())
    who, whom = "https://login.example", "https://hub.example"
    claims = {"iss": who, "aud": whom, "sub": "bench", "iat": now, "exp": now + 3600}
    parts = [_base64(msgspec.json.encode(part)) for part in ({"alg": "EdDSA", "kid": "1"}, claims)]
    text = b".".join(parts)
    settings = IssuerSettings("corp", who, (whom,), algorithms=("EdDSA",), grants=CALLER.grants)
    made = Issuer(settings, lambda caller: caller, time.time, time.monotonic)
    made.set_keys(read_keys(msgspec.json.encode({"keys": [jwk]}), ("EdDSA",)))
    return Issuers((made,)), text + b"." + _base64(private.sign(text))


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def permission() -> dict[str, Work]:
    """The lookup of a tool in the caller's own view."""
    loop = asyncio.new_event_loop()
    snapshot = loop.run_until_complete(hub_with_instant_server()).snapshot
    loop.close()
    call = Call(CALLER, EVERYTHING, "files.echo", msgspec.Raw(b"{}"))
    return {"permission": lambda: snapshot.find_tool(call.caller.grants, call.surface, call.client_caps, call.name)}


def audit() -> dict[str, Work]:
    """What a call's own path has of the log, and what its record costs elsewhere, the disk apart."""
    scribe = RecordEncoder(b"a key of the bench")
    loop = asyncio.new_event_loop()

    async def made() -> Audit:
        return Audit(Instant(), scribe, "batched")  # type: ignore[arg-type]  # all that it needs here

    recorder = loop.run_until_complete(made()).wrap(CallMetrics())
    call = Call(CALLER, EVERYTHING, "files.echo", msgspec.Raw(b'{"text":"a text of some length"}'))
    result = Result(RESULT)
    fact: Fact = (time.time(), call, SERVER, result, 0.001, True, "")
    inflight = InFlight(call, Silent(), recorder, loop)
    inflight.link = SentLink()
    recorder.call_ended(inflight, SERVER, result, 0.001)
    return {
        "audit: on the call's path": lambda: recorder.call_ended(inflight, SERVER, result, 0.001),
        "audit: record and digest": lambda: follow(START, scribe.record(fact)[1]),
    }


# -- together --------------------------------------------------------------------------------------------------------


def main() -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.trust", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each hub (default 15)")
    parser.add_argument("--seconds", type=float, default=0.8, help="length of a turn (default 0.8)")
    parser.add_argument("--connections", type=int, default=16, help="keep-alive connections (default 16)")
    options = parser.parse_args()
    for name, cost in parts().items():
        print(f"{name:<28}{cost:>10.2f} µs")
    try:
        with ExitStack() as held:
            server = held.enter_context(Program("bench.direct")).port(PORT_PRINTED)
            targets = [start(held, kind, server, options.connections) for kind in KINDS]
            taken = measure(targets, rounds=options.rounds, seconds=options.seconds)
    except (NotMeasured, NotStarted, WrongAnswer) as error:
        print(f"trust: {error}", file=sys.stderr)
        return 2
    return judge(taken)


def judge(taken: Mapping[str, Sequence[Round]]) -> int:
    """Print the rows; 1 if one costs more than is promised."""
    broken = []
    print(f"{'hub':<28}{'CPU µs/call':>12}{'more':>10}{'p99 ms':>10}")
    for kind in KINDS:
        turns = taken[kind.name]
        cpu = least(turns)
        more = cpu - least(taken[OPEN])
        p99 = median(turn.p99_milliseconds for turn in turns)
        print(f"{kind.name:<28}{cpu:>12.1f}{more:>+10.1f}{p99:>10.2f}")
        if kind.is_promised and more > PROMISED_MICROSECONDS:
            broken.append(
                f"{kind.name}: {more:.1f} µs more than an open hub, and {PROMISED_MICROSECONDS:g} are promised"
            )
    for sentence in broken:
        print(f"trust: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
