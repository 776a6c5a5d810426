"""Three turns with LlamaIndex, with a tool, and a stream: ... <base URL> <key> <model>

Writes one line of JSON: the role of each message after the turns, and whether a stream had text.
"""

from __future__ import annotations

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

BASE_URL, KEY, MODEL = sys.argv[1:4]
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"clear in {city}"


llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    max_tokens=8,
    max_retries=0,
)
tool = FunctionTool.from_defaults(fn=weather)
history = [ChatMessage(role="user", content="What is the weather in Rome?")]
history.append(llm.chat_with_tools([tool], chat_history=history).message)
history[-1] = ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [CALL]})
history.append(
    ChatMessage(role="tool", content="clear", additional_kwargs={"tool_call_id": "call_1"})
)
history.append(llm.chat_with_tools([tool], chat_history=history).message)
history.append(ChatMessage(role="user", content="Thanks."))
streamed = [chunk.delta for chunk in llm.stream_chat(history)]
roles = [message.role.value for message in history]
print(json.dumps({"roles": roles, "streamed": any(streamed)}))
