"""The client of AgentVault with its oauth2 credentials, in its usual variables: `login_agentvault CARD TOKEN`.

The client takes a key wherever a card offers one, so the card's address is one where only oauth2 is offered.
"""

from __future__ import annotations

import asyncio
import logging
import sys

from agentvault import AgentVaultClient, fetch_agent_card_from_url

from tests.agents.client_agentvault import pay


async def main() -> None:
    """Log in by the card's own word, and have something done."""
    logging.disable()
    url, token = sys.argv[1:]
    card = await fetch_agent_card_from_url(url)
    async with AgentVaultClient() as client:
        await pay(client, card, 3, token)


if __name__ == "__main__":
    asyncio.run(main())
