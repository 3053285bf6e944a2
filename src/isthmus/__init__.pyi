from isthmus.library.connection import connect as connect
from isthmus.library.errors import ToolError as ToolError
from isthmus.library.own_tools import tool as tool

__version__: str
