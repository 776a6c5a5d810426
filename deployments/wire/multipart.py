"""A request's multipart form, in which clients send audio.

Gateways and engines parse it with the same library. A gateway reads the fields, and the position at
which the last part ends. It keeps the client's body, and adds its own fields behind the last part.
Other bodies raise BadForm. https://datatracker.ietf.org/doc/html/rfc7578
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

from deployments.wire.form_limits import MAX_FIELD_BYTES, MAX_PARTS

FORM_TYPE = "multipart/form-data"
# More than the header of a WAV file.
HEAD_BYTES = 256
# The syntax in RFC 2046.
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


class BadForm(Exception):
    """Engines cannot read the body as a form. The message completes a sentence with "because"."""


@dataclass(frozen=True)
class FormFile:
    """A file in a form: its `size` in bytes, and its first HEAD_BYTES as `head`."""

    size: int
    head: bytes


@dataclass(frozen=True)
class Form:
    """A parsed form. If two parts have one name, the last counts, as in vLLM. The last part ends at
    byte `end` of the body."""

    boundary: bytes
    fields: Mapping[str, str]
    files: Mapping[str, FormFile]
    end: int

    @property
    def content_type(self) -> str:
        return f'{FORM_TYPE}; boundary="{self.boundary.decode()}"'

    def extended(self, body: bytes, more: Mapping[str, str]) -> bytes:
        """Return the body of this form with the fields `more`, which override the client's."""
        if not more:
            return body
        # a slice would copy the body, which may be megabytes
        parts: list[bytes | memoryview] = [memoryview(body)[: self.end]]
        for name, value in more.items():
            head = f'\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n'.encode()
            parts += [b"\r\n--", self.boundary, head, value.encode()]
        return b"".join([*parts, b"\r\n--", self.boundary, b"--\r\n"])


def read_form(body: bytes, content_type: str) -> Form:
    """Parse a whole body. Raises BadForm: when engines cannot read it."""
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise BadForm("its 'Content-Type' has no usable boundary")
    # otherwise a body full of boundaries could take seconds to parse
    if body.count(b"\r\n--" + boundary) > MAX_PARTS + 1:
        raise BadForm(f"it has more than {MAX_PARTS:,} parts")
    parts = _Parts()
    try:
        MultipartParser(boundary, parts.callbacks()).write(body)
    except FormParserError as error:
        raise BadForm(f"it is not a multipart form: {error}") from None
    if not parts.has_ended:
        raise BadForm("it ends before its closing boundary")
    end = body.index(b"\r\n--" + boundary + b"--", parts.at) if parts.number else 0
    return Form(boundary, parts.fields, parts.files, end)


class _Parts:
    """Collects the parts of one body, as callbacks of the parser.

    The parser gets the body in one piece, so all positions refer to the body. `at`: the end of the
    last header value or data.
    """

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.files: dict[str, FormFile] = {}
        self.number = self.at = 0
        self.has_ended = False
        self._header = ""
        self._disposition = ""
        self._name = ""
        self._text: bytearray | None = None
        self._size, self._head = 0, b""

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self.part_begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_headers_finished": self.headers_finished,
            "on_part_data": self.part_data,
            "on_part_end": self.part_end,
            "on_end": self.end,
        }

    def part_begin(self) -> None:
        self.number += 1
        if self.number > MAX_PARTS:
            raise BadForm(f"it has more than {MAX_PARTS:,} parts")
        self._disposition = ""

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end].decode("latin-1").lower()

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self.at = end
        if self._header == "content-disposition":
            self._disposition = data[start:end].decode("latin-1")

    def headers_finished(self) -> None:
        options = parse_options_header(self._disposition)[1]
        if b"name" not in options:
            raise BadForm("one of its parts has no name in its 'Content-Disposition'")
        self._name, self._size, self._head = _text(options[b"name"]), 0, b""
        self._text = None if b"filename" in options else bytearray()

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self.at = end
        self._size += end - start
        if self._text is None:
            self._head += data[start : min(end, start + HEAD_BYTES - len(self._head))]
        else:
            if self._size > MAX_FIELD_BYTES:
                raise BadForm(f"one of its fields has more than {MAX_FIELD_BYTES:,} bytes")
            self._text += data[start:end]

    def part_end(self) -> None:
        self.fields.pop(self._name, None)
        self.files.pop(self._name, None)
        if self._text is None:
            self.files[self._name] = FormFile(self._size, self._head)
        else:
            self.fields[self._name] = _text(self._text)

    def end(self) -> None:
        self.has_ended = True


def _text(value: bytes | bytearray) -> str:
    """Decode a text as Starlette does."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
