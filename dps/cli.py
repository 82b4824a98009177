"""The command ``dask dps``. Dask imports it for every command, which registers our defaults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import dps


@contextmanager
def refusals(scheduler: str | None) -> Iterator[None]:
    """Explain in one line that a scheduler cannot be reached or asked."""
    from dps.errors import DPSError

    try:
        yield
    except (OSError, DPSError) as error:
        raise click.ClickException(f"the scheduler at {scheduler}: {error}") from error


@click.group(name="dps")
def main() -> None:
    """Show the objects of dps on a cluster."""


@main.command()
@click.argument("scheduler")
def servers(scheduler: str) -> None:
    """List the parameter servers with names of the cluster at SCHEDULER, an address."""
    with refusals(scheduler):
        found = dps.ParameterServer.list(client=scheduler)
    for each in found:
        if "error" in each:
            said = each["error"]
        else:
            shards = each["shards"]
            said = (
                f"{len(each['tensors'])} tensors, {each['bytes']:,} bytes on "
                f"{', '.join(sorted({shard['worker'] for shard in shards}))}"
            )
        click.echo(f"{each['name']}: {said}")
