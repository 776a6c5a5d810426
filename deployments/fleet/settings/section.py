"""What every section of a fleet file has in common."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Section(BaseModel):
    # strict: YAML has types of its own, so `replicas: true` or `port: "80"` is a mistake
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_the_default(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        for name, key in schema["properties"].items():
            if name not in schema.get("required", ()):
                schema["properties"][name] = {"anyOf": [key, {"type": "null"}]}
        return reference
