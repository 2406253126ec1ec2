"""`leakscope audit`: what a user's model leaks, and a gate for CI. `leakscope inspect`: what it shows before any attack."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leakscope.cli.app import app
from leakscope.cli.options import (
    AsJson,
    Classes,
    Device,
    Imports,
    InputShape,
    ModelName,
    choose_device,
    import_components,
    this_command,
    writing,
)
from leakscope.core.errors import InputError
from leakscope.core.progress import status_line

if TYPE_CHECKING:
    from leakscope.auditing import Audit, Target
    from leakscope.auditing.target_file import Request

YAML = (".yaml", ".yml")
SHARES = ("asr", "ssim", "labels")  # limits in 0..1


@app.command()
def audit(
    what: Annotated[
        str, typer.Argument(help="package.module:build, a YAML file, or a directory of captures.", show_default=False)
    ],
    model: Annotated[
        str | None, typer.Option(help="For captures: package.module:build that returns the model.", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time limit in minutes; 4 if not given.", show_default=False)
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of simulated clients; 8 if not given.", show_default=False)
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Number of examples per update; fewer leak more.", show_default=False)
    ] = None,
    aggregate: Annotated[
        int | None, typer.Option(help="Number of clients whose mean update is all the server sees.", show_default=False)
    ] = None,
    dropouts: Annotated[
        int | None, typer.Option(help="How many of these clients drop out.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; 0 if not given.", show_default=False)] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(help="Exit with code 1 above these limits, such as asr=0.05,psnr=18.", show_default=False),
    ] = None,
    device: Device = "auto",
    remedies: Annotated[bool, typer.Option(help="If something leaked, also try the defences of the catalogue.")] = True,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of an attack to run instead of the suite; may be repeated, 'suite' keeps the suite.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="curious, or malicious: it also chooses the weights that clients get.", show_default=False),
    ] = None,
    imports: Imports = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the page and audit.json.", show_default=False)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing while it runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print audit.json instead of the text.")] = False,
) -> None:
    """Attack your own model with the fixed suite of attacks and grade the leakage; with --fail-above, a gate for CI."""
    from leakscope.clients.aggregation import summed_clients

    limits = read_gate(fail_above)
    import_components(imports, captures=Path(what) if Path(what).is_dir() else None)
    request = find_request(what, model)
    if not limits:
        limits = request.limits
        check_limits(limits, "fail_above")
    request = replace(
        request,
        target=replace(
            request.target,
            examples=request.target.examples if examples is None else examples,
            aggregate=summed_clients(request.target.aggregate, aggregate, dropouts),
            device=choose_device(device, quiet=quiet),
        ),
        minutes=request.minutes if minutes is None else minutes,
        clients=request.clients if clients is None else clients,
        seed=request.seed if seed is None else seed,
        server=request.server if server is None else server,
    )
    result = run_audit(request, what, remedies=remedies, attacks=attack, quiet=quiet)
    typer.echo(audit_json(result) if as_json else str(result))
    if out is not None:
        typer.echo(f"page: {write_audit(result, out)}", err=as_json)
    failed = result.failures(limits)
    for line in failed:
        typer.echo(f"leakscope: gate failed: {line}", err=True)
    if result.interrupted or failed:
        raise typer.Exit(130 if result.interrupted else 1)


@app.command()
def inspect(
    what: ModelName,
    batch: Annotated[
        int | None,
        typer.Option(help="Number of examples per update; by default as in the file, else 1.", show_default=False),
    ] = None,
    input_shape: InputShape = None,
    classes: Classes = 10,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model's updates reveal without an attack, in milliseconds: layers to divide, labels, buffers, tokens, ranks."""
    from leakscope.auditing.static.inspection import inspect_target

    import_components(imports)
    target = find_target(what, input_shape, classes, "inspect")
    inspection = inspect_target(target, batch)
    typer.echo(json.dumps(inspection.to_dict(), indent=1) if as_json else str(inspection))


def find_target(what: str, input_shape: str | None, classes: int, command: str) -> Target:
    """Return the model that MODEL names: by its name in the catalogue, a build function, or an audit's YAML file."""
    from leakscope.auditing.target_file import named_model
    from leakscope.core.registry import lookup
    from leakscope.scenario.components import KINDS

    shape = None if input_shape is None else read_shape(input_shape)
    if Path(what).is_dir():
        raise InputError(f"{command} takes a model, not a directory: {what}")
    if what.isidentifier() and not Path(what).exists():
        lookup(KINDS["model"].table, what, "model")
        if shape is None:
            raise InputError(f"model {what} needs --input-shape, such as 3x32x32")
        return named_model(what, shape, classes)
    target = find_request(what, None).target
    return target if shape is None else replace(target, input_shape=shape, inputs=None)


def read_shape(text: str) -> tuple[int, ...]:
    """Return the shape of an input.

    >>> read_shape("3x32x32")
    (3, 32, 32)
    """
    sizes = text.lower().split("x")
    if not all(size.isdecimal() and len(size) < 10 and int(size) for size in sizes):
        raise InputError(f"--input-shape must be sizes such as 3x32x32 or 784, got {text!r:.80}")
    return tuple(map(int, sizes))


def read_gate(text: str | None) -> Mapping[str, float]:
    """Return the limits of --fail-above, {} if it was not given; an empty text is an error: it would pass everything."""
    from leakscope.auditing.verdict import parse_gate

    if text is None:
        return {}
    if not text.strip():
        raise InputError(
            "--fail-above is empty, which would let everything pass (is a variable unset?): give limits such as "
            "asr=0.05,psnr=18, or leave it out"
        )
    limits = parse_gate(text)
    check_limits(limits, "--fail-above")
    return limits


def check_limits(limits: Mapping[str, float], where: str) -> None:
    """Refuse limits that are never, or always, exceeded."""
    for name, limit in limits.items():
        if name in SHARES and not 0 <= limit <= 1:
            raise InputError(f"{where}: {name} is a share and must lie in 0..1, got {limit:g}")
        if not math.isfinite(limit):
            raise InputError(f"{where}: {name} needs a finite number, got {limit:g}")


def find_request(what: str, model: str | None) -> Request:
    """Return what to audit: captures with a model, a file, or a build function."""
    from leakscope.auditing.target_file import Request, load_build, read_request

    path = Path(what)
    if path.is_dir():
        if model is None:
            raise InputError(f"{what} is a directory of captures: --model package.module:build must say whose they are")
        return Request(load_build(model, captures=path))
    if model is not None:
        raise InputError(f"--model is for a directory of captures; {what} is none")
    if path.suffix in YAML or path.is_file():
        return read_request(path)
    return Request(load_build(what))


def run_audit(
    request: Request, what: str, *, remedies: bool, attacks: Sequence[str] | None = None, quiet: bool
) -> Audit:
    """Return the audit of a request: of captures if `what` is a directory, else of the model."""
    from leakscope.auditing import audit_captures, audit_target
    from leakscope.auditing.dishonest_server import Server, read_server
    from leakscope.auditing.target_audit import CLIENTS, MINUTES

    minutes = MINUTES if request.minutes is None else request.minutes
    clients = CLIENTS if request.clients is None else request.clients
    seed, progress, target = request.seed or 0, status_line(quiet=quiet), request.target
    server = read_server("curious" if request.server is None else request.server)
    if Path(what).is_dir():
        if server is not Server.CURIOUS:
            raise InputError(
                "captures are updates that were sent already: --server malicious needs a model and a sample"
            )
        return audit_captures(
            Path(what), target, minutes=minutes, clients=clients, attacks=attacks, seed=seed, progress=progress
        )
    return audit_target(
        target, minutes=minutes, clients=clients, remedies=remedies, attacks=attacks, server=server, seed=seed,
        progress=progress,
    )  # fmt: skip


def audit_json(result: Audit) -> str:
    """Return the record of an audit as JSON."""
    from leakscope.auditing.audit_record import audit_record

    return json.dumps(audit_record(result), indent=1)


def write_audit(result: Audit, out: Path) -> Path:
    """Write the page, the JSON record and, without a truth, the reconstructions; return the path of the page."""
    from leakscope.report.audit_page import page_of_audit
    from leakscope.report.page import write
    from leakscope.store.directory import AUDIT
    from leakscope.store.disk import replacing

    with writing(f"--out {out}"):
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / AUDIT) as file:
            file.write(f"{audit_json(result)}\n".encode())
        if result.unscored:
            from safetensors.torch import save

            with replacing(out / "guesses.safetensors") as file:
                file.write(save({run.name: run.reconstruction.inputs.contiguous() for run in result.unscored}))
        return write(page_of_audit(result, command=this_command()), out / "index.html")
