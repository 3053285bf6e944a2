"""Tokens that are bound to a key of the hub (RFC 9449), as servers and authorization servers see them over sockets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt import PyJWKSet

from isthmus.core.background import BackgroundTasks
from isthmus.credentials import server_logins
from isthmus.credentials.signed_jwts import NONCES_MAX, PUSH_KEY_FILE, ProofKey, Prover, PushKeyFile, PushSigner
from isthmus.credentials.vault import Slot, Vault
from isthmus.model.calls import Result
from isthmus.model.fault_table import NotConnected
from isthmus.transport.egress import Egress, parse_url
from isthmus.transport.http_client import REFUSAL_BYTES_MAX, ConnectionLost, HttpClient, Ticket, request_head
from isthmus.upstream import reconnector
from tests.faults.scripted import hub_of
from tests.faults.watching import eventually
from tests.security.authority import Authority, BindingAuthority, BoundServer, Protected, checked, entry_of
from tests.unit.credentials.test_server_logins import OWN, logged_in, reason_of

# -- a person's login ------------------------------------------------------------------------------------------------


async def test_a_login_has_a_key_which_is_kept_sealed_and_used_for_all_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_logins, "LEEWAY_SECONDS", 0.0)
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        authority.first_expires_in = [1.0]
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
            await eventually(lambda: authority.count("refresh_token") == 1, "it is renewed")
            await eventually(lambda: b"refresh-2" in (Vault(tmp_path / "state").get(Slot("s")) or b""), "it is kept")
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
        assert server.shown[-1] == "DPoP token-2"
    thumbprints = {proof.thumbprint for proof in (*authority.proofs, *server.proofs)}
    assert thumbprints == {authority.asked[0]["dpop_jkt"]}, "one key, to which the code was bound already"
    kept = [file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert kept
    assert not any(b"PRIVATE KEY" in content for content in kept)
    assert b"PRIVATE KEY" in (Vault(tmp_path / "state").get(Slot("s")) or b"")
    assert "PRIVATE KEY" not in capsys.readouterr().out


async def test_each_login_has_a_key_of_its_own(tmp_path: Path) -> None:
    async with (
        BindingAuthority() as authority,
        BoundServer(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server)}) as hub,
    ):
        await logged_in(hub, tmp_path / "state")
        await logged_in(hub, tmp_path / "state")
        await hub.ready("s")
    assert len({asked["dpop_jkt"] for asked in authority.asked}) == 2


async def test_a_link_signs_with_the_key_of_the_login_that_there_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another link may take a new login up before those are told that are open."""
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
        monkeypatch.setattr(server_logins, "CHECK_SECONDS", 60.0)
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await hub.ready("s")
            await logged_in(hub, tmp_path / "state")
            settings = hub.running.configuration.servers[0]
            login = hub.running.logins.login_for(settings.name, server.url, {}, settings.credentials)
            assert login.read_again()
            greetings = server.greetings
            assert isinstance(await hub.call("s.t"), Result)
            assert server.greetings == greetings
    assert server.shown[-1] == "DPoP token-2"


async def test_a_kept_key_that_is_damaged_is_a_login_that_is_wanted(tmp_path: Path) -> None:
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await logged_in(hub, tmp_path / "state")
            await hub.ready("s")
        vault = Vault(tmp_path / "state")
        vault.put(Slot("s"), (vault.get(Slot("s")) or b"").replace(b"BEGIN PRIVATE", b"BEGIN DAMAGED"))
        async with hub_of(tmp_path, {"s": entry_of(server)}) as hub:
            await eventually(lambda: hub.state("s") == "login", "it requires a login")


# -- when tokens are bound -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dpop", "resource", "challenge", "is_bound"),
    [
        ("auto", {}, None, False),
        ("auto", {"dpop_signing_alg_values_supported": ["ES256"]}, None, True),
        ("auto", {"dpop_signing_alg_values_supported": ["RS512"]}, None, False),
        ("auto", {"dpop_bound_access_tokens_required": True}, None, True),
        ("auto", {}, 'Bearer realm="x", DPoP algs="ES256"', True),
        ("never", {"dpop_bound_access_tokens_required": True}, "DPoP", False),
        ("always", {}, None, True),
    ],
)
async def test_tokens_are_bound_where_both_servers_know_how_or_as_configured(
    tmp_path: Path, dpop: str, resource: dict[str, Any], challenge: str | None, *, is_bound: bool
) -> None:
    """An authorization server that can bind tokens may stand before servers that take bearer tokens only."""
    async with BindingAuthority() as authority, Protected(authority) as server:
        server.resource, server.challenge = resource, challenge
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN, dpop=dpop)}):
            await eventually(lambda: server.shown[-1:] not in ([], [""]), "it shows a token")
        assert server.shown[-1] == f"{'DPoP' if is_bound else 'Bearer'} token-1"


@pytest.mark.parametrize("knows", [False, True])
async def test_a_server_whose_issuer_is_configured_is_asked_whether_it_takes_bound_tokens(
    tmp_path: Path, *, knows: bool
) -> None:
    async with BindingAuthority() as authority, Protected(authority) as server:
        server.challenge = "DPoP" if knows else "Bearer"
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN, issuer=authority.url)}):
            await eventually(lambda: server.shown[-1:] not in ([], [""]), "it shows a token")
        assert server.shown[-1] == f"{'DPoP' if knows else 'Bearer'} token-1"


async def test_a_bearer_token_is_refused_where_bound_ones_are_always_wanted(tmp_path: Path) -> None:
    async with (
        Authority() as authority,
        Protected(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server, **OWN, dpop="always")}) as hub,
    ):
        await eventually(lambda: hub.state("s") == "login", "the hub says so")
        assert "it issued a bearer token, but dpop is required" in reason_of(hub)
        assert set(server.shown) == {""}


# -- nonces ----------------------------------------------------------------------------------------------------------


async def test_the_nonces_of_both_servers_are_taken_up(tmp_path: Path) -> None:
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        authority.nonce, server.nonce = "of-the-authority", "of-the-server"
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await hub.ready("s")
            assert isinstance(await hub.call("s.t"), Result)
            refused = len(server.proofs) - len(server.ran)
            server.nonce = "another"
            assert isinstance(await hub.call("s.t"), Result)
    assert [proof.claims.get("nonce") for proof in authority.proofs] == [None, "of-the-authority"]
    assert refused >= 1
    assert len(server.proofs) - len(server.ran) == refused + 1, "one more for the nonce that was replaced"
    assert server.ran.count("tools/call") == 2, "each call ran once"


async def test_a_token_request_is_repeated_once_for_a_nonce(tmp_path: Path) -> None:
    async with BindingAuthority() as authority, BoundServer(authority) as server:
        authority.nonce, authority.is_content = "never-enough", False
        async with hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub:
            await eventually(lambda: hub.state("s") == "login", "the hub gives up")
            assert "use_dpop_nonce" in reason_of(hub)
        assert len(authority.forms) == 2


async def test_a_call_is_repeated_once_for_a_nonce_and_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnector, "LOGIN_RETRY_SECONDS", 60.0)
    async with (
        BindingAuthority() as authority,
        BoundServer(authority) as server,
        hub_of(tmp_path, {"s": entry_of(server, **OWN)}) as hub,
    ):
        await hub.ready("s")
        server.nonce, server.wants_for, server.is_content = "never-enough", "tools/call", False
        outcome = await hub.call("s.t")
        assert isinstance(outcome, NotConnected)
        assert (outcome.executed, outcome.status) == ("no", 401)
        assert server.count("tools/call") == 2
        assert "tools/call" not in server.ran


# -- the signing client, on a socket ---------------------------------------------------------------------------------

REFUSAL = (
    b'HTTP/1.1 401 X\r\nwww-authenticate: DPoP error="use_dpop_nonce"\r\ndpop-nonce: n\r\ncontent-length: %d\r\n\r\n'
)
DONE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Answers:
    """A server that reads whole requests without a body, and says what it is told to."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.replies: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What to say next; None closes the connection."""

    async def __aenter__(self) -> Answers:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/mcp?session=1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                while (said := await self.replies.get()) is not None:
                    writer.write(said)
                    if not said.endswith(b"\r\n\r\n"):
                        break
                else:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def proofs(self) -> list[str]:
        lines = (line for head in self.heads for line in head.split("\r\n"))
        return [line.removeprefix("dpop: ") for line in lines if line.startswith("dpop: ")]


class ReplySink:
    """Hears one reply."""

    def __init__(self) -> None:
        self.over: asyncio.Future[tuple[int, bytes] | ConnectionLost] = asyncio.get_running_loop().create_future()
        self._status = 0
        self._body = b""

    def on_head(self, status: int, headers: object) -> None:
        self._status = status

    def on_body(self, chunk: bytes) -> None:
        self._body += chunk

    def on_end(self) -> None:
        self.over.set_result((self._status, self._body))

    def on_lost(self, lost: ConnectionLost) -> None:
        self.over.set_result(lost)


class Sending:
    """A client that signs, before a server that a test plays."""

    async def __aenter__(self) -> Sending:
        self.server = await Answers().__aenter__()
        self.background = BackgroundTasks("test")
        origin, target = parse_url(self.server.url)
        self.client = HttpClient(origin, Egress(), self.background, is_configured=True, signer=Prover(ProofKey.make()))
        self.head = request_head("GET", target, origin, {"authorization": "DPoP token-1"})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.background.aclose()
        await self.server.__aexit__()

    def send(self) -> tuple[ReplySink, Ticket]:
        received = ReplySink()
        return received, self.client.send(self.head, None, received)


async def test_a_refusal_for_a_nonce_is_read_to_its_end_and_the_connection_used_again() -> None:
    async with Sending() as sending:
        received, ticket = sending.send()
        for said in (REFUSAL % 4 + b"xxxx", DONE):
            sending.server.replies.put_nowait(said)
        assert await asyncio.wait_for(received.over, 5.0) == (200, b"ok")
        assert ticket.may_have_left
        assert sending.server.connections == 1
        url = sending.server.url.partition("?")[0]
        first, second = (checked(proof, "GET", url, "token-1") for proof in sending.server.proofs())
        assert (first.claims.get("nonce"), second.claims["nonce"]) == (None, "n")
        assert first.claims["jti"] != second.claims["jti"]


@pytest.mark.parametrize("rest", [None, b"x" * (REFUSAL_BYTES_MAX + 1)], ids=["cut off", "endless"])
async def test_a_refusal_that_does_not_end_well_is_a_refusal_all_the_same(rest: bytes | None) -> None:
    async with Sending() as sending:
        received, _ = sending.send()
        for said in (REFUSAL % (REFUSAL_BYTES_MAX * 2), rest, DONE):
            sending.server.replies.put_nowait(said)
        assert await asyncio.wait_for(received.over, 5.0) == (200, b"ok")
        assert sending.server.connections == 2


async def test_a_request_that_was_refused_and_given_up_has_provably_not_run() -> None:
    async with Sending() as sending:
        received, ticket = sending.send()
        sending.server.replies.put_nowait(REFUSAL % 4)
        await eventually(lambda: sending.server.replies.empty() and not ticket.may_have_left, "it is refused")
        ticket.abort()
        assert not ticket.may_have_left
        assert not received.over.done()


async def test_a_request_that_is_lost_after_its_second_proof_may_have_run() -> None:
    async with Sending() as sending:
        received, ticket = sending.send()
        for said in (REFUSAL % 4 + b"xxxx", None):
            sending.server.replies.put_nowait(said)
        lost = await asyncio.wait_for(received.over, 5.0)
        assert isinstance(lost, ConnectionLost)
        assert lost.may_have_left
        assert ticket.may_have_left
        assert len(sending.server.heads) == 2


# -- proofs ----------------------------------------------------------------------------------------------------------


def test_a_key_reveals_nothing_of_itself_and_can_be_read_again() -> None:
    key = ProofKey.make()
    again = ProofKey.read(key.text())
    assert again.thumbprint == key.thumbprint
    assert "PRIVATE" not in repr(key) + repr(vars(Prover(key)))


def test_a_foreign_key_is_refused_and_not_quoted() -> None:
    with pytest.raises(ValueError, match="cannot be read") as refused:
        ProofKey.read("a secret")
    assert "a secret" not in str(refused.value)
    other = ec.generate_private_key(ec.SECP384R1())
    text = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(ValueError, match="is not a P-256 key"):
        ProofKey.read(text)


def test_nonces_belong_to_their_origins_and_odd_ones_are_left() -> None:
    prover = Prover(ProofKey.make())
    assert prover.set_nonce("https://a.example/token", {"dpop-nonce": "n1"})
    assert not prover.set_nonce("https://b.example/token", {"dpop-nonce": 'a "quote"'})
    assert not prover.set_nonce("https://b.example/token", {"dpop-nonce": "x" * 513})

    def nonce(url: str) -> object:
        return jwt.decode(prover.proof("POST", url), options={"verify_signature": False}).get("nonce")

    assert nonce("https://a.example/other?x#y") == "n1"
    assert nonce("https://b.example/token") is None
    for number in range(NONCES_MAX):
        prover.set_nonce(f"https://{number}.example/", {"dpop-nonce": "n"})
    assert nonce("https://a.example/token") is None, "the one that was not heard of for longest is forgotten"


# -- push notifications -----------------------------------------------------------------------------------------


NOW = 1_800_000_000.5
BODY = '{"id": "t",  "n": 1.50, "text": "\\u00e9 \u00e9"}'.encode()


def test_a_body_is_signed_as_its_listener_reads_it(tmp_path: Path) -> None:
    token = PushSigner(PushKeyFile(tmp_path / "state")).token_for(BODY, NOW)
    keys = PyJWKSet.from_dict(json.loads(PushSigner(PushKeyFile(tmp_path / "state")).key_set()))
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["RS256"], options={"verify_iat": False})
    read = '{"id":"t","n":1.5,"text":"\u00e9 \u00e9"}'.encode()
    assert claims == {"iat": int(NOW), "request_body_sha256": hashlib.sha256(read).hexdigest()}


def test_the_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert PushSigner(PushKeyFile(state)).key_set() == PushSigner(PushKeyFile(state)).key_set()
    assert [file.name for file in state.iterdir()] == [PUSH_KEY_FILE]
    assert stat.S_IMODE((state / PUSH_KEY_FILE).stat().st_mode) == 0o600
    assert b'"d"' not in PushSigner(PushKeyFile(state)).key_set()


@pytest.mark.parametrize("body", [b'{"n": 1e400}', b'{"text": "\\ud800"}'])
def test_a_body_that_receivers_cannot_reproduce_is_not_signed(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever Python says of it
        PushSigner(PushKeyFile(tmp_path)).token_for(body, NOW)


def test_a_damaged_key_is_no_key(tmp_path: Path) -> None:
    (tmp_path / PUSH_KEY_FILE).write_text("abcd")
    with pytest.raises(ValueError, match="does not contain an RSA key"):
        PushSigner(PushKeyFile(tmp_path)).key_set()
