"""Addresses that the hub must not dial for a caller or a server: each bypasses a check of some earlier software.

In `HOSTS` and `NAMES` a port is put behind the host: a sink's, so that every connection is seen. `URLS` are whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


NETWORKS = listed("""
    127.0.0.1 127.0.0.2 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.254
    192.168.0.1 192.168.255.254 169.254.169.254 169.254.170.2 169.254.0.1 100.64.0.1 100.100.100.200 192.0.0.1
    192.0.0.192 198.18.0.1 198.19.255.254 192.0.2.1 198.51.100.1 203.0.113.1 192.88.99.1 224.0.0.1 239.255.255.250
    240.0.0.1 255.255.255.255 168.63.129.16
""")
"""One of each network that is not public, and where clouds keep their metadata."""

SPELLINGS = listed("""
    127.1 127.0.1 0 2130706433 0x7f000001 0x7f.1 0177.0.0.1 0177.0.0.01 017700000001 127.0.0.1. 127.0.0.0x1
    2852039166 0xa9fea9fe 0251.0376.0251.0376 169.254.43518 127。0。0。1 127．0．0．1 ①②⑦.⓪.⓪.① １２７.0.0.1
""")
"""What glibc, or IDNA before it, makes an address of."""

SIXES = listed("""
    [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:1] [::ffff:a9fe:a9fe]
    [::127.0.0.1] [::169.254.169.254] [::ffff:0:7f00:1] [::ffff:0:a9fe:a9fe] [64:ff9b::7f00:1] [64:ff9b::a9fe:a9fe]
    [64:ff9b:1::a9fe:a9fe] [64:ff9b:1:7f00:1::] [2002:7f00:1::1] [2002:a9fe:a9fe::1] [2001::1]
    [2001:0:7f00:1:0:0:80ff:fffe] [2001:10::1] [2001:db8::1] [3fff::1] [5f00::1] [100::1] [fc00::1] [fd00:ec2::254]
    [fe80::1] [fec0::1] [ff02::1] [ff05::1:3] [4000::1]
""")
"""What is not global unicast, and what has an IPv4 address inside."""

HOSTS = [*NETWORKS, *SPELLINGS, *SIXES]

NAMES: Mapping[str, list[list[str]]] = {
    "localhost": [["127.0.0.1"]],
    "LOCALHOST": [["127.0.0.1"]],
    "localhost.": [["127.0.0.1"]],
    "app.localhost": [["127.0.0.1"]],
    "metadata.google.internal": [["169.254.169.254"]],
    "metadata.google.internal.": [["169.254.169.254"]],
    "anything.internal": [["10.0.0.1"]],
    "printer.local": [["192.168.0.9"]],
    "loopback.example": [["127.0.0.1"]],
    "six.example": [["::1"]],
    "both.example": [["127.0.0.1", "::1", "10.0.0.1"]],
    "metadata.example": [["169.254.169.254"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "translated.example": [["64:ff9b::a9fe:a9fe"]],
    "bücher.localhost": [["127.0.0.1"]],
}
"""Names, and where they lead."""

URLS = [
    "http://good.example@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@good.example/",
    "http://good.example:pw@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@good.example/",
    "http://good.example#@127.0.0.1:{port}/",
    "http://good.example\\@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\.good.example/",
    "http:\\\\127.0.0.1:{port}/",
    "http:/127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "///127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    " http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\t/",
    "http://127.0.0.1:{port}\r\nHost: good.example/",
    "http://127.0.0.1%00.good.example:{port}/",
    "http://127.0.0.1%2e:{port}/",
    "http://%31%32%37.0.0.1:{port}/",
    "http://[::1%25lo]:{port}/",
    "http://[fe80::1%25lo]:{port}/",
    "http://[::1]good.example:{port}/",
    "http://[127.0.0.1]:{port}/",
    "http://[v1.127.0.0.1]:{port}/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:65536/",
    "http://127.0.0.1:{port}0000000000/",
    "http://127.0.0.1:-1/",
    "http://127.0.0.1:{port}:80/",
    "http://localhost:{port}\x00.good.example/",
    "http://loc\u00adalhost:{port}/",
    "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:{port}/",
    "HTTP://127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/",
    "ws://127.0.0.1:{port}/",
    "wss://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "file://127.0.0.1:{port}/etc/passwd",
    "gopher://127.0.0.1:{port}/_GET",
    "dict://127.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
    "unix:/var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "javascript:fetch('http://127.0.0.1:{port}/')",
    "data:text/html,<img src=http://127.0.0.1:{port}/>",
    "jar:http://127.0.0.1:{port}/!/",
    "ldap://127.0.0.1:{port}/",
    "tcp://127.0.0.1:{port}/",
]
"""Whole ones: what parsers disagree about, and other schemes."""


def vectors(port: int) -> list[str]:
    """All of them, with a port of the test's own."""
    return list(_made(port))


def _made(port: int) -> Iterator[str]:
    for host in (*HOSTS, *NAMES):
        yield f"http://{host}:{port}/"
    for url in URLS:
        yield url.format(port=port)
