"""A stdio server that costs next to nothing: a shell script, for tests that need hundreds at once.

It speaks the modern era, has one tool, `pay`, and answers it with its own mark.
"""

from __future__ import annotations

_SCRIPT = r"""
say() { printf '{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",%s}}\n' "$id" "$1"; }
while IFS= read -r line; do
  id=${line#*'"id":'}; id=${id%%,*}
  case $line in
    *'"server/discover"'*) say '"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}';;
    *'"tools/list"'*) say '"tools":[{"name":"pay","inputSchema":{"type":"object"}}]';;
    *'"tools/call"'*) say '"content":[{"type":"text","text":"'"$1"'"}]';;
  esac
done
"""


def command(mark: str) -> list[str]:
    """The words that start it; the mark is found in its answers and in the list of processes."""
    return ["/bin/sh", "-c", _SCRIPT, "light-server", mark]
