"""One conversation: what was said, and how the next answer is asked for and shown."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TextIO

from cli.gateway_client import GatewayError

if TYPE_CHECKING:
    from openai import OpenAI

HELP = """\
/reset        forget the conversation
/model        the model in use; /model NAME changes it
/help         this
Ctrl-C stops an answer, Ctrl-D leaves"""


class ChatSession:
    def __init__(self, client: OpenAI, model: str, system: str | None = None) -> None:
        self.model = model
        self._client = client
        self._system = [{"role": "system", "content": system}] if system else []
        self._said: list[dict[str, str]] = []

    def reset(self) -> None:
        self._said = []

    def ask(self, message: str, out: TextIO) -> None:
        """Write the answer as it comes. Ctrl-C ends it, and what came stays in the conversation.

        Raises GatewayError; the message is then not part of the conversation.
        """
        from openai import OpenAIError

        asked = {"role": "user", "content": message}
        messages: Any = [*self._system, *self._said, asked]
        answer = ""
        try:
            with (
                self._client.chat.completions.create(
                    model=self.model, messages=messages, stream=True
                ) as stream,
                contextlib.suppress(KeyboardInterrupt),
            ):
                for chunk in stream:
                    piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
                    answer += piece
                    out.write(piece)
                    out.flush()
        except OpenAIError as error:
            message = getattr(error, "message", str(error))
            raise GatewayError(f"no answer: {message}", "see /help, or antefix status") from error
        finally:
            out.write("\n")
        self._said += [asked, {"role": "assistant", "content": answer}]
