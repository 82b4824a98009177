"""The command ``dask dps``. Dask imports it for every ``dask ...``, and so shows our defaults."""

from __future__ import annotations

import click

import dps


@click.group(name="dps")
def main() -> None:
    """Show the objects of dps on a cluster."""


@main.command()
@click.argument("scheduler")
def servers(scheduler: str) -> None:
    """List the parameter servers with names of the cluster at SCHEDULER, an address."""
    for each in dps.ParameterServer.list(client=scheduler):
        if "error" in each:
            said = each["error"]
        else:
            shards = each["shards"]
            said = (
                f"{len(each['tensors'])} tensors, {each['bytes']:,} bytes on "
                f"{', '.join(sorted({shard['worker'] for shard in shards}))}"
            )
        click.echo(f"{each['name']}: {said}")
