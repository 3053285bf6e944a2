"""Tools in a notebook: each part below is a cell (`# %%`), and runs as well from top to bottom as a program.

    python examples/library/notebook.py

Cells that call a tool just call it: a notebook's own loop may be running, and nothing here is in its way. Running a
cell again replaces the function that it made a tool of. Running the first one again makes another service: run the last
one before. Interrupting a cell stops the tool that it waits for; restarting the kernel ends every server.
"""

# %% A service: here with a small server of this checkout; `BlockingToolService("mcp.json")` reads a file instead.
import sys
from pathlib import Path

from isthmus.library import BlockingToolService, ToolContext, ToolRequest, tool

# A notebook has no __file__; it is started in the checkout.
checkout = Path(__file__).parents[2] if "__file__" in globals() else Path.cwd()
notes = {"name": "notes", "command": sys.executable, "args": [str(checkout / "examples" / "notes_server.py")]}
tools = BlockingToolService({"mcp_servers": [notes]})
tools.initialize()
print(tools.list_tools())

# %% A call: by the full name, or by any shorter one that only one tool has.
print(tools.execute_tool(ToolRequest("add", parameters={"text": "Buy bread."})).text)


# %% A function of one's own, as a tool.
@tool
def knead(context: ToolContext, minutes: int = 3) -> str:
    """Knead the dough."""
    for minute in range(minutes):
        context.progress(minute + 1, minutes, f"minute {minute + 1}")
    return "smooth"


for chunk in tools.execute_tool_stream(ToolRequest("knead")):
    print(chunk.chunk_type, chunk.content)

# %% A mistake is a result that says what to do.
print(tools.execute_tool(ToolRequest("knead", parameters={"minutes": "many"})).error_message)
print(tools.execute_tool(ToolRequest("nead")).error_message)

# %% The end; without it, everything is closed with the notebook.
tools.shutdown()
