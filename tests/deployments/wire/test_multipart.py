"""A gateway reads a form as the engine's server does, and what it adds to one counts there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from deployments.wire.form_limits import MAX_FIELD_BYTES, MAX_PARTS
from deployments.wire.multipart import (
    HEAD_BYTES,
    BadForm,
    Form,
    FormFile,
    read_form,
)

TYPE = "multipart/form-data; boundary=b"
MORE = {"model": "other"}


def part(name: str, value: bytes, file_name: str | None = None) -> bytes:
    file = "" if file_name is None else f'; filename="{file_name}"'
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value


def form_of(*parts: bytes, end: bytes = b"--b--\r\n") -> bytes:
    return b"".join(each + b"\r\n" for each in parts) + end


async def by_starlette(body: bytes, content_type: str) -> dict[str, str | int]:
    """What vLLM's server gets: of each name the last text, or the size of the last file."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    found = await MultiPartParser(Headers({"content-type": content_type}), pieces()).parse()  # type: ignore[arg-type]
    return {
        name: value.size or 0 if isinstance(value, UploadFile) else value
        for name, value in found.items()
    }


def fields_and_sizes(form: Form) -> dict[str, str | int]:
    assert not form.fields.keys() & form.files.keys()
    return {**form.fields, **{name: file.size for name, file in form.files.items()}}


FORMS = {
    "a file": form_of(part("model", b"m"), part("file", b"RIFF\x00", "a.wav")),
    "nothing": form_of(),
    "empty values": form_of(part("model", b""), part("file", b"", "")),
    "the model twice": form_of(part("model", b"one"), part("model", b"two")),
    "a text, then a file": form_of(part("model", b"one"), part("model", b"two", "m")),
    "a file, then a text": form_of(part("model", b"one", "m"), part("model", b"two")),
    "umlauts": form_of(part("pr\xfcfung".encode().decode("latin-1"), "\xe4\xf6".encode())),
    "no UTF-8": form_of(part("prompt", b"\xff\xfe")),
    "almost an end": form_of(part("file", b"\r\n--b-\r\n--bc\r\n--", "a"), part("model", b"m")),
    "an epilogue": form_of(part("model", b"m"), end=b"--b--\r\n--b\r\n\r\n\r\n--b--\r\n"),
    "an end among headers": form_of(b"--b\r\n--b--: x\r\n" + part("model", b"m")[5:]),
    "padding": form_of(part("model", b"m")).replace(b"--b\r\n", b"--b \t\r\n", 1)[3:],
    "a first empty line": b"\r\n" + form_of(part("model", b"m"), part("file", b"", "a")),
}


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS)
async def test_a_form_is_read_as_the_engines_server_reads_it(body: bytes) -> None:
    try:
        right = await by_starlette(body, TYPE)
    except MultiPartException:
        with pytest.raises(BadForm):
            read_form(body, TYPE)
        return
    form = read_form(body, TYPE)
    assert fields_and_sizes(form) == right
    assert form.extended(body, {}) == body
    if right:
        extended = await by_starlette(form.extended(body, MORE), form.content_type)
        assert extended == {**right, **MORE}


PIECES = st.lists(
    st.sampled_from(
        [
            *(b"--b", b"--b--", b"\r\n", b"\r", b"\n", b"-", b"a", b" ", b": "),
            *(b"Content-Disposition: form-data; name=model", b"; filename=f", b"\r\n\r\n"),
            *(part("model", b"m"), part("file", b"f", "f"), part("other", b"")),
        ]
    ),
    max_size=25,
).map(b"".join)


@given(body=PIECES)
async def test_the_gateway_and_the_engine_read_the_same_form_from_any_body(body: bytes) -> None:
    """Wherever a gateway accepts a form, its model is the engine's."""
    try:
        form = read_form(body, TYPE)
    except BadForm:
        return
    assert fields_and_sizes(form) == await by_starlette(body, TYPE)
    if form.end:
        extended = await by_starlette(form.extended(body, MORE), form.content_type)
        assert extended == {**fields_and_sizes(form), **MORE}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", form_of(part("model", b"m"))),
        ("multipart/form-data; boundary=", form_of(part("model", b"m"))),
        ('multipart/form-data; boundary="\xe4"', form_of(part("model", b"m"))),
        (f"multipart/form-data; boundary={'b' * 71}", form_of(part("model", b"m"))),
        (TYPE, b""),
        (TYPE, b'{"model": "m"}'),
        (TYPE, form_of(part("model", b"m"), end=b"")),
        (TYPE, form_of(part("model", b"m"), end=b"--b")),
        (TYPE, form_of(b"--b\r\nContent-Type: text/plain\r\n\r\nm")),
        (TYPE, form_of(b"--b\r\n\r\nm")),
        (TYPE, form_of(*[part("a", b"")] * (MAX_PARTS + 1))),
        (TYPE, form_of(part("file", b"\r\n--bc" * 2 * MAX_PARTS, "a"))),
        (TYPE, form_of(part("prompt", b"a" * (MAX_FIELD_BYTES + 1)))),
        (TYPE, form_of(b"--b\r\n" + b"a: b\r\n" * 100 + part("model", b"m")[5:])),
    ],
)
def test_other_bodies_are_not_parsed_as_forms(content_type: str, body: bytes) -> None:
    with pytest.raises(BadForm):
        read_form(body, content_type)


def test_a_large_form_is_read_without_a_copy() -> None:
    audio = b"\x00" * 2**20
    body = form_of(
        part("model", b"m"), *[part("a", b"b")] * (MAX_PARTS - 2), part("file", audio, "a")
    )
    form = read_form(body, TYPE)
    assert form.files == {"file": FormFile(len(audio), audio[:HEAD_BYTES])}
    assert body[: form.end].endswith(audio)


@pytest.mark.parametrize("boundary", ["b", "a b'()+_,-./:=?c", "----WebKitFormBoundaryABC"])
def test_the_engine_gets_the_boundary_of_the_client(boundary: str) -> None:
    given_type: Any = f'multipart/form-data; charset=utf-8; boundary="{boundary}"'
    body = form_of(part("model", b"m")).replace(b"--b", b"--" + boundary.encode())
    form = read_form(body, given_type)
    assert form.boundary == boundary.encode()
    assert read_form(body, form.content_type) == form
