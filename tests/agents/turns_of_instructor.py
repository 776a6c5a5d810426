"""Three turns with instructor, each a forced call: ... <base URL> <key> <model>

A model of one layer may write blanks until the answer is full, where a grammar allows them.
Writes one line of JSON: by turn the city, or "incomplete".
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import instructor
from instructor.core.exceptions import IncompleteOutputException
from openai import OpenAI
from pydantic import BaseModel

BASE_URL, KEY, MODEL = sys.argv[1:4]
QUESTIONS = ("What is the weather in Rome?", "And in Oslo?", "And in Rome again?")


class City(BaseModel):
    city: Literal["Rome", "Oslo"]


client = instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0))
messages: list[Any] = []
cities = []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    try:
        found = client.chat.completions.create(
            model=MODEL, messages=messages, response_model=City, max_retries=0, max_tokens=40
        )
        cities.append(found.city)
    except IncompleteOutputException:
        cities.append("incomplete")
    messages.append({"role": "assistant", "content": "Rome"})
print(json.dumps(cities))
