"""Commands that run a hub, or bring servers to one: `serve`, `stdio` and `dial`.

What these do is loaded when they run.
"""

from __future__ import annotations

from pathlib import Path

import click

from isthmus.cli.options import chosen, with_config, with_source


@click.command()
@with_config
@click.option("--host", metavar="H", help="The address to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    help="The port; 0 takes a free one.  [default: 8765]",
)
@click.option("--insecure", "is_insecure", is_flag=True, help="With no callers, let in everybody who can reach it.")
def serve(config: Path | None, host: str | None, port: int | None, *, is_insecure: bool) -> int:
    """Run the hub: MCP at /mcp (all servers) and /mcp/SERVER (one), REST at /v1."""
    from isthmus.cli.serve import serve_hub

    return serve_hub(config, host, port, is_insecure=is_insecure)


@click.command()
@with_source
def stdio(hub: str | None, config: Path | None) -> int:
    """Serve MCP on standard input and output, for clients that start their servers."""
    source = chosen(hub, config)
    from isthmus.cli.stdio import serve_stdio

    return serve_stdio(source)


@click.command(short_help="Bring local servers to a hub elsewhere.")
@click.argument("words", nargs=-1, metavar="[URL] [-- COMMAND...]")
@click.option("--url", metavar="URL", help="A local server that listens already, by HTTP or SSE.")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="All servers of an mcp.json or isthmus.toml."
)
@click.option("--only", multiple=True, metavar="NAME", help="Of these, this one; may be given several times.")
@click.option("--server-id", metavar="ID", help="What the server is called at the hub.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="Where the token is.")
@click.option("--compatible", "is_compatible", is_flag=True, help="A plain connection for each server.")
@click.option("--plain", "is_plain", is_flag=True, help="Log lines instead of a view that is redrawn.")
def dial(
    words: tuple[str, ...],
    url: str | None,
    config: Path | None,
    only: tuple[str, ...],
    server_id: str | None,
    token_file: Path | None,
    *,
    is_compatible: bool,
    is_plain: bool,
) -> int:
    """Bring local servers to a hub elsewhere, also from behind NAT: it dials out and listens nowhere.

    URL is the hub's address with its token, as `isthmus token relay` prints it, or MCP_ENDPOINT. The token may come by
    ISTHMUS_RELAY_TOKEN or --token-file instead, where nobody else on this machine can read it.
    """
    from isthmus.cli.dial import Wanted, dial_hub

    return dial_hub(Wanted(words, url, config, server_id, only, token_file, is_compatible, is_plain))
