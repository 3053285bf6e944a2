"""The port of the bus between the nodes of a cluster, and its values.

`cluster.unix` connects the workers of one machine, `cluster.nats` connects machines; both keep exactly what is promised
here. A node is one process. The bus is transport, never truth: what must last is in the database.

Three ways to reach other nodes, from the cheapest to the strongest promise:

- `publish`: to all other nodes, at most once. A message may be lost, repeated or reordered.
- `request`: one question to one node, with one answer or one of two errors. `NodeAway` proves that nothing handled it;
  `NoResponse` does not.
- `connect`: a `BusChannel` to a service of one node. Its messages arrive once and in order, or it breaks and both sides
are notified.

All callbacks run in the event loop. An exception of a callback is logged and costs only its own message, request or
channel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NewType, Protocol, TypeAlias

NodeId = NewType("NodeId", str)
"""A node's name: any text of 1 to 128 bytes of UTF-8. A process that is started again may use the same one."""

NAME_BYTES_MAX: Final = 128
"""Of the names of nodes, topics and services, in UTF-8."""

ONE_SHOT_BYTES_MAX: Final = 1024 * 1024
"""The longest message of `publish` and `request`, both ways. Anything longer needs a channel with its flow control."""


@dataclass(frozen=True, slots=True)
class PeerNode:
    """Another node that is present."""

    node: NodeId
    epoch: int
    """Distinguishes the lives of a node: another epoch is another life, which knows nothing of the channels, requests
    and leases of the one before. A node that lost its connection to NATS begins a new life, too."""
    joined: float
    """When this node saw it first in this epoch, in seconds since 1970, by this node's clock."""
    attributes: Mapping[str, str]
    """What it announced about itself: address, version, digest of its servers and so on."""


@dataclass(frozen=True, slots=True)
class BusState:
    """Whether the bus is usable; readiness reports it."""

    is_connected: bool
    since: float
    """Since when, in seconds since 1970."""
    reason: str = ""
    """Why it is not connected, or what is wrong although it is; empty if all is well."""


# -- errors ------------------------------------------------------------------------------------------------------------


class BusFault(Exception):
    """Something could not be done over the bus; the message says why."""


class NodeAway(BusFault):
    """Provably nothing was handled: it did not leave, or the node refused it.

    The node is unknown or away, the bus is not connected, the node does not have the service, or it is busy.
    """


class NoResponse(BusFault):
    """It left, or may have left, and there is no answer: the node may have handled it."""


class ChannelFull(BusFault):
    """The reader stands still and the channel holds `unsent_bytes_max`: the message was not accepted."""


class ChannelClosed(BusFault):
    """The channel was closed or is broken: the message was not accepted."""


# -- channels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChannelEnd:
    """How a channel ended."""

    how: Literal["here", "peer", "broken"]
    """`here`: this side closed it, and the peer has received everything. `peer`: the peer closed it, and this side has
    received everything. `broken`: anything else; something that was sent may be missing."""
    reason: str


class ChannelReceiver(Protocol):
    """The owner of a channel's end. `closed` is the last call."""

    def message(self, message: bytes) -> None:
        """A whole message."""

    def writable(self) -> None:
        """The channel had more than a window unsent, and has less than half a window now; or see `is_confirmed`."""

    def silent(self, confirmed: int) -> None:
        """The peer answers no ping, and has confirmed nothing after the offset `confirmed`; it may answer later.

        Only for channels that were opened on this side, if something was sent or `is_confirmed` was False.
        """

    def closed(self, end: ChannelEnd) -> None:
        """The channel has ended. It is called once, except after `abort`."""


class BusChannel(Protocol):
    """One end of a channel of messages, in both directions. Messages have any size; long ones are sent in chunks.

    It never loses, repeats or reorders a message: where the transport does so, the channel breaks on both sides. A slow
    reader stops its own writer and no other channel. Only `close`, `abort` or its end free it.
    """

    @property
    def peer(self) -> NodeId:
        """The node at the other end."""

    @property
    def is_open(self) -> bool:
        """Whether `send` accepts messages."""

    def is_confirmed(self) -> bool:
        """Whether the peer sent something a moment ago.

        If not, it is pinged: the receiver's `writable` is called when it gives one, and `silent` if it gives none soon.
        """

    def start(self, receiver: ChannelReceiver) -> None:
        """Deliver what has come and will come. Until then the channel is a reader that stands still."""

    def pause(self) -> None:
        """Deliver no messages until `resume`. The writer stops once the window is full."""

    def resume(self) -> None:
        """Deliver messages again, beginning in the next turn of the event loop."""

    def send(self, message: bytes) -> int:
        """Send a message; return the offset of its end in all bytes ever accepted, for `has_left`. It never waits.

        The bytes must not change afterwards: long ones are not copied.

        Raises:
            ChannelClosed: it is not open.
            ChannelFull: too much is unsent. A message is always accepted while at most a window is, so after `drain`.
            ValueError: the message is longer than `message_bytes_max`.
        """

    def has_left(self, offset: int) -> bool:
        """False only if the byte before `offset` provably has not left this process and never will after the end.

        Final once the channel has ended. While it is open, what has not left may still leave.
        """

    def buffered_bytes(self) -> int:
        """How much was accepted and has not left."""

    async def drain(self) -> None:
        """Wait until at most a window is unsent.

        Raises:
            ChannelClosed: it ended.
        """

    def close(self, reason: str = "") -> None:
        """Close it in order: the peer receives everything that was sent before, then the reason.

        Nothing is received afterwards. `closed` reports whether the peer has received everything.
        """

    def abort(self, reason: str = "") -> None:
        """Break it at once: what has not left never leaves, and the peer learns of it. `closed` is not called."""


# -- the bus -----------------------------------------------------------------------------------------------------------

Unsubscribe: TypeAlias = Callable[[], None]
"""Ends a registration; a second call does nothing."""

Subscriber: TypeAlias = Callable[[NodeId, bytes], None]
"""Receives a published message and the node that published it."""

Responder: TypeAlias = Callable[[NodeId, bytes], bytes | Awaitable[bytes]]
"""Answers a request. If it returns an awaitable, that becomes a task, which is cancelled when the requester gives up.
An exception ends the request with `NoResponse` there."""

Acceptor: TypeAlias = Callable[[BusChannel], None]
"""Receives a new channel and calls its `start`, at once or later. An exception breaks the channel."""


class Bus(Protocol):
    """A node's connection to the other nodes."""

    @property
    def node(self) -> NodeId:
        """This node."""

    @property
    def epoch(self) -> int:
        """This life of this node; see `PeerNode.epoch`."""

    @property
    def state(self) -> BusState:
        """Whether the bus is usable now."""

    def on_state_changed(self, changed: Callable[[BusState], None]) -> Unsubscribe:
        """Call `changed` whenever `state` has changed."""

    # presence

    def peers(self) -> Mapping[NodeId, PeerNode]:
        """The other nodes that are present now; none while the bus is not connected."""

    def silence_of(self, node: NodeId) -> float | None:
        """For how many seconds nothing has come from a peer, to a quarter of a heartbeat; None if it is away."""

    def on_peers_changed(self, changed: Callable[[], None]) -> Unsubscribe:
        """Call `changed` after nodes came, went, began a new epoch or announced other attributes."""

    def announce(self, attributes: Mapping[str, str]) -> None:
        """Replace this node's attributes; other nodes see them at the latest with the next heartbeat.

        Raises:
            ValueError: they take more than 8 KiB as JSON.
        """

    # messages

    def publish(self, topic: str, payload: bytes) -> None:
        """Send to the subscribers of all other nodes, at most once: it may be lost, repeated or reordered.

        Raises:
            ValueError: the payload is longer than `ONE_SHOT_BYTES_MAX`.
        """

    def subscribe(self, topic: str, receive: Subscriber) -> Unsubscribe:
        """Receive what other nodes publish. A topic may have several subscribers."""

    # requests

    async def request(self, node: NodeId, service: str, payload: bytes, *, within: float) -> bytes:
        """The answer of a node's responder.

        Raises:
            NodeAway: provably nothing was handled.
            NoResponse: it may have been handled; also if the responder failed, if `within` seconds have passed, or if
                the node answers no ping.
            ValueError: the payload is longer than `ONE_SHOT_BYTES_MAX`.
        """

    def respond(self, service: str, responder: Responder) -> Unsubscribe:
        """Answer requests to `service` from other nodes.

        Raises:
            ValueError: the service has a responder already.
        """

    # channels

    async def connect(self, node: NodeId, service: str, *, within: float) -> BusChannel:
        """Open a channel to a service of another node; its owner calls `start`.

        Raises:
            NodeAway: no channel was opened.
            NoResponse: `within` seconds have passed, or the node answers no ping. If the node has opened the channel,
                it breaks there.
        """

    def serve(self, service: str, accept: Acceptor) -> Unsubscribe:
        """Accept channels to `service` from other nodes. Open channels are not affected by the end of it.

        Raises:
            ValueError: the service is served already.
        """

    async def aclose(self) -> None:
        """Leave: tell the other nodes, break all channels, end all requests."""


def check_name(kind: str, name: str) -> str:
    """Return the name of a topic, service or node.

    Raises:
        ValueError: it is empty or too long, or is not Unicode.
    """
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise ValueError(f"a {kind} must have 1 to {NAME_BYTES_MAX} bytes, not {name[:40]!r}")
    return name
