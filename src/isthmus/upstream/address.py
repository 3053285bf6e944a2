"""Where a server points to: a redirect, or the endpoint that it names. The hub goes there only within the origin."""

from __future__ import annotations

from urllib.parse import urljoin

from isthmus.transport.egress import Origin, parse_url
from isthmus.upstream.link import ConnectFailed


def target_within(origin: Origin, target: str, reference: str, does: str, *, stays: bool = False) -> str:
    """The request target that `reference` means at `origin` and `target`; `does` says in words what the server did.

    Where it must stay, the two may differ by a slash at the end and by nothing else.

    Raises:
        ConnectFailed: it is no address, or another origin's, which the credentials must not reach.
    """
    try:
        if not reference.isprintable():
            # `urljoin` would silently remove some of these, so what was checked would not be what was said.
            raise ValueError("it contains a control character")
        place, found = parse_url(urljoin(f"{origin}{target}", reference))
    except ValueError as error:
        raise ConnectFailed(f"it {does} something that is no address ({error})") from error
    if place != origin:
        raise ConnectFailed(f"it {does} {place}, which is not {origin}; configure that address if it is the right one")
    if stays and _plain(found) != _plain(target):
        raise ConnectFailed(f"it {does} another path; name that one if it is the right one")
    return found


def _plain(target: str) -> tuple[str, str]:
    path, _, query = target.partition("?")
    return path.rstrip("/"), query
