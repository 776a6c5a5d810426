"""One conversation: its messages, requests and output."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TextIO

from cli.common.gateway_client import GatewayError, UnreachableGateway
from cli.common.hints import address_of, status_of
from cli.common.output import note

if TYPE_CHECKING:
    from openai import OpenAI, OpenAIError

HELP = """\
/reset        forget the conversation
/model        the model in use; /model NAME changes it
/help         show this help
Ctrl-C stops an answer, Ctrl-D quits"""


def failed_call(error: OpenAIError, url: str, what: str, remedy: str) -> GatewayError:
    """Return the error for a failed call. `what` is the failed action; the cause's remedy replaces
    `remedy`."""
    from openai import APIConnectionError, AuthenticationError

    if isinstance(error, APIConnectionError):
        cause = str(error.__cause__ or error).removesuffix(".")
        return UnreachableGateway(f"could not connect to {url}: {cause}", address_of(url))
    message = f"{what}: {getattr(error, 'message', str(error)).removesuffix('.')}"
    if isinstance(error, AuthenticationError):
        remedy = "check --api-key or OPENAI_API_KEY"
    return GatewayError(f"{url} {message}", remedy)


class ChatSession:
    """A conversation. `max_tokens` limits each answer."""

    def __init__(
        self, client: OpenAI, model: str, max_tokens: int, system: str | None = None
    ) -> None:
        self.model = model
        self._max_tokens = max_tokens
        self._client = client
        self._system = [{"role": "system", "content": system}] if system else []
        self._said: list[dict[str, str]] = []

    def reset(self) -> None:
        self._said = []

    def ask(self, message: str, out: TextIO) -> None:
        """Write the answer as it arrives. Ctrl-C stops it, and the received part stays in the
        conversation.

        Raises GatewayError; the message is then not part of the conversation.
        """
        from openai import OpenAIError

        asked = {"role": "user", "content": message}
        messages: Any = [*self._system, *self._said, asked]
        answer, ending = "", None
        try:
            with (
                self._client.chat.completions.create(
                    model=self.model,
                    messages=messages,
                    max_tokens=self._max_tokens,
                    stream=True,
                ) as stream,
                contextlib.suppress(KeyboardInterrupt),
            ):
                for choice in (choice for chunk in stream for choice in chunk.choices):
                    piece = choice.delta.content or ""
                    ending = choice.finish_reason or ending
                    answer += piece
                    out.write(piece)
                    out.flush()
        except OpenAIError as error:
            url = str(self._client.base_url).rstrip("/")
            remedy = f"see /help, or {status_of(url)}"
            raise failed_call(error, url, "does not answer", remedy) from error
        finally:
            out.write("\n")
        if ending == "length":
            note(f"(cut after {self._max_tokens} tokens; --max-tokens allows more)")
        self._said += [asked, {"role": "assistant", "content": answer}]
