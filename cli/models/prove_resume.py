"""`antefix prove-resume`: check whether resumed answers have the same tokens as uninterrupted
ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from cli.common.exit_codes import ExitCode
from cli.common.named_pool import named_pool
from cli.common.options import FleetFile, Output, PoolName
from cli.common.output import answering, is_data, note, print_data
from cli.common.progress import Steps

if TYPE_CHECKING:
    from deployments.fleet.pool import Pool
    from deployments.offline.resume_proof import Proof


def prove_resume(
    fleet: FleetFile,
    pool: PoolName = None,
    output: Output = "table",
) -> None:
    """Check that resumed answers have the same tokens on this hardware."""
    with answering(output):
        from deployments.fleet.fleet_file import load_fleet

        name, of_fleet = named_pool(load_fleet(fleet).pools, pool)
        proof = _proof(of_fleet)
        if is_data(output):
            print_data(_json(name, proof), output)
        else:
            _print(name, proof)
        if not proof.is_exact:
            raise typer.Exit(ExitCode.FOUND)


def _proof(pool: Pool) -> Proof:
    from cli.local.home import home_folder
    from deployments.models.model import resolve_model
    from deployments.offline.offline_engine import OfflineEngine
    from deployments.offline.resume_proof import prove

    log = home_folder() / "logs" / "prove-resume.log"
    with Steps() as steps:
        with steps.step("model") as step:
            model = resolve_model(pool.model, step.show)
        with steps.step("answers") as step:
            return prove(
                lambda: OfflineEngine.start(model, pool.engine_args, log, pool.env),
                lambda words, done: step.show(done, words),
            )


def _print(pool: str, proof: Proof) -> None:
    for kind, found in proof.kinds.items():
        if found.left_out is not None:
            typer.echo(f"{kind:22} not resumed: {found.left_out}")
            continue
        reruns = (
            f"; {found.reruns} of {found.answers} differ without an interruption"
            if found.reruns
            else ""
        )
        typer.echo(f"{kind:22} {found.cuts - found.other} of {found.cuts} identical{reruns}")
    engine = proof.engine
    kernels = ", VLLM_BATCH_INVARIANT" if engine.batch_invariant else ""
    note(f"on {engine.device} in {engine.dtype}, model runner {engine.runner}{kernels}")
    if proof.is_exact:
        note(
            "every resumed answer had the same tokens as the uninterrupted one; for the fleet file:"
        )
        # quoted, because YAML reads digits alone as a number
        lines = f'resume: exact\n    resume_proof: "{engine.proof}"'
        typer.echo(f"pools:\n  {pool}:\n    {lines}")
        return
    note(
        f"{proof.other} of {proof.cuts} had different tokens: omit `resume`, or set it to "
        "`continued`"
    )
    if engine.platform == "cuda":
        note(
            "on an H100 all tokens were the same with `attention_backend: TRITON_ATTN` in "
            '`engine_args` and `VLLM_BATCH_INVARIANT: "1"` in `env`'
        )


def _json(pool: str, proof: Proof) -> dict[str, Any]:
    return {
        "pool": pool,
        "exact": proof.is_exact,
        "cuts": proof.cuts,
        "other": proof.other,
        "engine": vars(proof.engine),
        "kinds": {kind: vars(found) for kind, found in proof.kinds.items()},
    }
