"""The JSON Schema of a configuration file, for editors; it is made from the definitions that validate the file."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

from .schema import Configuration

JsonSchema: TypeAlias = dict[str, Any]


class _Generator(GenerateJsonSchema):
    """Leaves out null, which TOML does not have, and titles, because the names of keys suffice."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False

    def nullable_schema(self, schema: NullableSchema) -> JsonSchema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchema:
        if schema.get("default") is None:
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def json_schema() -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of a configuration file."""
    schema = Configuration.model_json_schema(schema_generator=_Generator)
    return {"$schema": _Generator.schema_dialect, **schema}
