"""Prompt Cache's schemas (2311.04934): named modules of text at fixed positions, of which prompts use some."""

from minipic_sdk.schema.markup import Selection, parse_prompt, parse_schema
from minipic_sdk.schema.objects import Module, Param, Schema, SchemaError, Slot, Union

__all__ = [
    "Module",
    "Param",
    "Schema",
    "SchemaError",
    "Selection",
    "Slot",
    "Union",
    "parse_prompt",
    "parse_schema",
]
