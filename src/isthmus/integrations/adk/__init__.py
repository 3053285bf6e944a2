"""Every MCP server of a hub as tools of google-adk agents: `pip install 'isthmus[adk]'`.

`HubToolset` goes into an agent's `tools`; `AdkDomainAgent` runs a whole `AgentRequest`.
"""

try:
    import google.adk as _adk  # noqa: F401 - to say what is missing, if it is
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "google-adk is not installed here: pip install 'isthmus[adk]'", name=error.name, path=error.path
    ) from error

from isthmus.integrations.adk.agent import AdkDomainAgent
from isthmus.integrations.adk.results import Background
from isthmus.integrations.adk.tool import HubTool, ToolOptions
from isthmus.integrations.adk.toolset import HubToolset

__all__ = ["AdkDomainAgent", "Background", "HubTool", "HubToolset", "ToolOptions"]
