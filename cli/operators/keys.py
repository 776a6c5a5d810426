"""`antefix key`: create and revoke API keys in a file that gateways follow.

A key is shown once, when it is created; the file contains its salted hash. Lines written by others
stay unchanged, and `tenant=key` lines remain valid. A rotated or revoked key becomes a hash. The
file is replaced in one rename, so no gateway reads half of it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.common.command_line import CommandLine
from cli.common.duration import Duration, duration
from cli.common.options import Output, WideOutput
from cli.common.output import answering, is_data, note, print_data, print_table
from cli.local.home import Home
from common.errors import Problem
from common.file_lock import only_one
from deployments.gateway.intake.api_keys import read_text
from deployments.gateway.intake.keys_file import (
    KeyRights,
    StoredKey,
    keys_of,
    new_key,
    stored,
    with_key,
    written,
)

keys = CommandLine(help="Create, list, revoke and rotate API keys.")

GRACE_PERIOD = Duration(7 * 86400)
HEADINGS = ("id", "tenant", "state", "expires")
WIDE_HEADINGS = ("models", "priority", "overflow", "policy", "operator")

KeysFile = Annotated[
    Path | None,
    typer.Option("--file", help="Key file; default: the one that `antefix up` uses."),
]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Key id, from antefix key list.")]


@keys.command()
def create(
    tenant: Annotated[str, typer.Argument(help="Tenant that the key authenticates.")],
    file: KeysFile = None,
    expires_in: Annotated[
        Duration | None,
        typer.Option(
            parser=duration(),
            metavar="DURATION",
            help="Time until the key expires; default: never.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model that the key may use; repeatable; default: all.")
    ] = None,
    priority: Annotated[
        Literal["interactive", "batch"],
        typer.Option(help="Highest priority class that requests with the key may use."),
    ] = "interactive",
    overflow: Annotated[
        bool, typer.Option(help="Whether another model may answer when the requested one is full.")
    ] = True,
    policy: Annotated[
        bool, typer.Option(help="Whether requests with the key may send x-antefix-policy.")
    ] = True,
    operator: Annotated[
        bool,
        typer.Option(
            "--operator",
            help="Give the key the rights of an operator, if its tenant is one: see the requests of"
            " all tenants and the loads of replicas, load adapters, see and end canaries, profile"
            " engines.",
        ),
    ] = False,
    output: Output = "table",
) -> None:
    """Create a key for a tenant and print it once."""
    with answering(output):
        if tenant != tenant.strip() or not tenant or set(tenant) & set("=,\n\r#"):
            raise Problem(
                f"{tenant!r} is not a valid tenant name",
                "names cannot contain =, commas, # or line breaks, or begin or end with a space",
            )
        rights = KeyRights(
            frozenset(model) if model else None, priority, overflow, policy, operator
        )
        expires = None if expires_in is None else time.time() + expires_in
        key = new_key()
        made = stored(tenant, key, rights, expires)
        _change(file, lambda text: with_key(text, made))
        _show_new(key, made, output)


@keys.command("list")
def list_keys(file: KeysFile = None, output: WideOutput = "table") -> None:
    """List the ids of keys, and report faults in the key file."""
    with answering(output):
        path = _path(file)
        if file is not None and not path.exists():
            raise Problem(f"there is no file {path}", "correct --file")
        found, faults = keys_of(read_text(path) if path.exists() else "")
        if is_data(output):
            print_data({"keys": [_told(key) for key in found.values()], "problems": faults}, output)
            return
        if found:
            wide = output == "wide"
            print_table(HEADINGS + WIDE_HEADINGS * wide, (_row(k, wide) for k in found.values()))
        else:
            own = "; `antefix env` prints the key of the fleet itself" if file is None else ""
            note(f"no keys in {path}{own}")
        for fault in faults:
            note(fault)


@keys.command()
def revoke(key_id: KeyId, file: KeysFile = None, output: Output = "table") -> None:
    """Revoke a key. Gateways reject it within seconds."""
    with answering(output):
        revoked: list[StoredKey] = []

        def revoking(text: str) -> str:
            old = _found(text, key_id)
            revoked.append(replace(old, revoked=old.revoked or time.time()))
            return with_key(text, revoked[0])

        _change(file, revoking)
        if is_data(output):
            print_data(_told(revoked[0]), output)
        else:
            typer.echo(f"{key_id} of {revoked[0].tenant} is revoked")


@keys.command()
def rotate(
    key_id: KeyId,
    file: KeysFile = None,
    grace_period: Annotated[
        Duration,
        typer.Option(parser=duration(), metavar="DURATION", help="Time until the old key expires."),
    ] = GRACE_PERIOD,
    output: Output = "table",
) -> None:
    """Replace a key; the old one expires after a grace period."""
    with answering(output):
        key, until = new_key(), time.time() + grace_period
        made: list[StoredKey] = []

        def rotating(text: str) -> str:
            old = _found(text, key_id)
            if old.revoked is not None:
                raise Problem(f"the key {key_id} is revoked", "use antefix key create")
            made.append(stored(old.tenant, key, old.rights))
            ending = replace(old, expires=min(until, old.expires or until))
            return with_key(with_key(text, ending), made[0])

        _change(file, rotating)
        _show_new(key, made[0], output)
        if not is_data(output):
            note(f"the old one, {key_id}, expires at {written(until)}")


def _change(file: Path | None, change: Callable[[str], str]) -> None:
    """Change the file, created if missing, while no other `antefix key` changes it."""
    path = _path(file)
    try:
        with only_one(path.with_name(f".{path.name}.lock"), lambda: note(f"{path} is in use")):
            text = change(read_text(path) if path.exists() else "")
            with tempfile.NamedTemporaryFile(  # mkstemp makes it 0600
                "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
            ) as new:
                new.write(text.encode("utf-8", "surrogateescape"))
                new.flush()
                os.fsync(new.fileno())
            if path.exists():
                shutil.copymode(path, new.name)
            Path(new.name).replace(path)
    except OSError as error:
        why = error.strerror or error
        raise Problem(
            f"{path} cannot be changed: {why}", "choose another file with --file"
        ) from error


def _path(file: Path | None) -> Path:
    return file.resolve() if file else Home().keys_file


def _found(text: str, key_id: str) -> StoredKey:
    keys, _ = keys_of(text)
    if key_id not in keys:
        raise Problem(f"no key here has the id {key_id!r}", "antefix key list shows the ids")
    return keys[key_id]


def _show_new(key: str, made: StoredKey, output: str) -> None:
    if is_data(output):
        print_data({"key": key, **_told(made)}, output)
        return
    typer.echo(key)
    note(f"the key of {made.tenant} is shown only this once; its id is {made.id}")


def _told(key: StoredKey) -> dict[str, Any]:
    rights = asdict(key.rights)
    rights["models"] = sorted(key.rights.models) if key.rights.models is not None else None
    ends = {"expires": key.expires, "revoked": key.revoked}
    times = {name: written(at) if at else None for name, at in ends.items()}
    return {"id": key.id, "tenant": key.tenant, "state": _state(key), **times, "rights": rights}


def _row(key: StoredKey, wide: bool) -> tuple[str, ...]:
    expires = "never" if key.expires is None else written(key.expires)
    cells = (key.id, key.tenant, _state(key), expires)
    if not wide:
        return cells
    rights = key.rights
    models = "all" if rights.models is None else ",".join(sorted(rights.models))
    flags = (rights.overflow, rights.policy, rights.operator)
    return (*cells, models, rights.priority, *("yes" if flag else "no" for flag in flags))


def _state(key: StoredKey) -> str:
    if key.revoked is not None:
        return "revoked"
    if key.expires is not None and time.time() >= key.expires:
        return "expired"
    return "plain" if key.plain else "hashed"
