"""What personalised outputs are written as, by the ending of the name that they are to have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedcore.errors import ConfigError
from fedcore.population.store import Population
from fedcore.storage.files import Place, is_remote, place
from fedcore.training.output_files import CsvFiles, OutputFiles, ParquetFiles, ZarrFolder
from fedcore.training.output_parts import sweep
from fedcore.training.output_pictures import ArrayFile, PictureFolder

KINDS: Mapping[str, type[OutputFiles]] = {
    "": ZarrFolder,
    ".zarr": ZarrFolder,
    ".parquet": ParquetFiles,
    ".csv": CsvFiles,
    ".npz": ArrayFile,
    ".pngs": PictureFolder,
}
FOLDERS = (ZarrFolder, PictureFolder)


def output_files(dest: str | Path, population: Population, features: Sequence[str]) -> OutputFiles:
    """What writes the outputs of the clients of a population to `dest`. features: names of outputs whose last axis are
    the features of the population.

    Raises ConfigError if `dest` is a URL, or its ending none of those above; PopulationError if there is something.
    """
    path = _local(dest)
    sweep(path)
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"personalised outputs cannot be written as {path.suffix!r}, which is how {str(dest)!r} ends.",
            "End the name in .parquet, .csv or .npz for a file, in .zarr or nothing for a folder of arrays, in .pngs "
            "for one of pictures.",
        )
    if kind not in FOLDERS and str(dest).endswith(("/", os.sep)):
        raise ConfigError(
            f"{str(dest)!r} is the name of a folder that ends like a file.",
            f"Leave the last slash out, or the ending {path.suffix!r}.",
        )
    return kind(path, population, features)


def _local(dest: str | Path) -> Path:
    path: Place = place(dest)
    if is_remote(path):
        raise ConfigError(
            f"Personalised outputs are not written to {path}.", "They hold clients' own data: name a local folder."
        )
    return Path(str(path))
