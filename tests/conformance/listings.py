"""The lists of the fixture: its tools, resources, template and prompts.

The names, addresses and schemas are those that the conformance suite looks for. What happens behind them is in
`tools` and `resources`.
"""

from __future__ import annotations

from typing import Any

from mcp_types import Prompt, PromptArgument, Resource, ResourceTemplate, Tool

JsonObject = dict[str, Any]

TEXT_URI = "test://static-text"
BINARY_URI = "test://static-binary"
WATCHED_URI = "test://watched-resource"
TEMPLATE_URI = "test://template/{id}/data"


def form(**properties: JsonObject) -> JsonObject:
    """The schema of an object that needs all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT: JsonObject = {"type": "string"}
CHOICES = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{number}", "title": f"Choice {number}"} for number in (1, 2, 3)]

NAME_FORM = form(name=TEXT)
COLOUR_FORM = form(color=TEXT)
CONSENT_FORM = form(ok={"type": "boolean"})
CONTEXT_FORM = form(context=TEXT)
ACCOUNT_FORM = form(username=TEXT, email=TEXT)
DEFAULTS_FORM = form(
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
CHOICES_FORM = form(
    untitledSingle={"type": "string", "enum": CHOICES},
    titledSingle={"type": "string", "oneOf": TITLED},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    untitledMulti={"type": "array", "items": {"type": "string", "enum": CHOICES}},
    titledMulti={"type": "array", "items": {"anyOf": TITLED}},
)

VOCABULARY: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": TEXT, "city": TEXT}},
    },
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""Every keyword of JSON Schema 2020-12 that the suite looks for in a listing."""

NOTHING: JsonObject = {"type": "object"}
ROUTED: JsonObject = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

# The suite calls the first tool of the list without arguments and expects it to work.
_PLAIN = {
    "test_simple_text": "One line of text.",
    "test_image_content": "A picture.",
    "test_audio_content": "A sound.",
    "test_embedded_resource": "A resource inside the result.",
    "test_multiple_content_types": "Text, a picture and a resource.",
    "test_error_handling": "Always fails.",
    "test_tool_with_logging": "Logs three lines.",
    "test_logging_tool": "Logs one line.",
    "test_tool_with_progress": "Reports progress three times.",
    "test_reconnection": "Closes its stream before it answers.",
    "test_missing_capability": "Refuses callers that cannot sample.",
    "test_trigger_tool_change": "Changes the list of tools.",
    "test_trigger_prompt_change": "Changes the list of prompts.",
    "test_elicitation_sep1034_defaults": "Asks with a form that has defaults.",
    "test_elicitation_sep1330_enums": "Asks with a form of choices.",
    "test_streaming_elicitation": "Reports progress, then asks.",
    "test_input_required_result_elicitation": "Asks the user.",
    "test_input_required_result_sampling": "Asks the model.",
    "test_input_required_result_list_roots": "Asks for the roots.",
    "test_input_required_result_request_state": "Asks, and knows its own state again.",
    "test_input_required_result_multiple_inputs": "Asks the user, the model and for the roots at once.",
    "test_input_required_result_multi_round": "Asks twice, the second time depending on the first.",
    "test_input_required_result_tampered_state": "Asks, and refuses a state that was changed.",
    "test_input_required_result_capabilities": "Asks only what the caller can answer.",
    "test_elicitation_url": "Sends the user elsewhere.",
}
_WITH_ARGUMENTS = {
    "test_sampling": ("Asks the model.", form(prompt=TEXT)),
    "test_elicitation": ("Asks the user.", form(message=TEXT)),
    "test_x_mcp_header": ("Has an argument that travels in a header too.", ROUTED),
    "json_schema_2020_12_tool": ("Has a schema with every keyword.", VOCABULARY),
}

TOOLS = [
    *(Tool(name=name, description=text, input_schema=NOTHING) for name, text in _PLAIN.items()),
    *(Tool(name=name, description=text, input_schema=schema) for name, (text, schema) in _WITH_ARGUMENTS.items()),
]

RESOURCES = [
    Resource(uri=TEXT_URI, name="static-text", description="A text.", mime_type="text/plain"),
    Resource(uri=BINARY_URI, name="static-binary", description="A picture.", mime_type="image/png"),
    Resource(uri=WATCHED_URI, name="watched-resource", description="A text to watch.", mime_type="text/plain"),
]
TEMPLATES = [
    ResourceTemplate(
        uri_template=TEMPLATE_URI, name="template", description="Data by id.", mime_type="application/json"
    )
]


def _prompt(name: str, description: str, *arguments: str) -> Prompt:
    needed = [PromptArgument(name=argument, description=f"The {argument}.", required=True) for argument in arguments]
    return Prompt(name=name, description=description, arguments=needed or None)


PROMPTS = [
    _prompt("test_simple_prompt", "One line of text."),
    _prompt("test_prompt_with_arguments", "Text with two arguments.", "arg1", "arg2"),
    _prompt("test_prompt_with_embedded_resource", "A resource and a request.", "resourceUri"),
    _prompt("test_prompt_with_image", "A picture and a request."),
    _prompt("test_input_required_result_prompt", "Asks the user before it is written out."),
]
