"""What personalised outputs are written as, by the ending of the name that they are to have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedcore.errors import ConfigError
from fedcore.population.store import Population
from fedcore.storage.files import Place, is_remote, place
from fedcore.storage.parsing import format_suffix
from fedcore.training.output_files import CsvFiles, OutputFiles, ParquetFiles, ZarrFolder
from fedcore.training.output_parts import sweep
from fedcore.training.output_pictures import ArrayFile, PictureFolder
from fedcore.training.output_videos import VideoFolder

KINDS: Mapping[str, type[OutputFiles]] = {
    "": ZarrFolder,
    ".zarr": ZarrFolder,
    ".parquet": ParquetFiles,
    ".csv": CsvFiles,
    ".npz": ArrayFile,
    ".pngs": PictureFolder,
    ".videos": VideoFolder,
}
FOLDERS = (ZarrFolder, PictureFolder, VideoFolder)


def output_files(
    dest: str | Path, population: Population, features: Sequence[str], *, safe_cells: bool = False
) -> OutputFiles:
    """What writes the outputs of the clients of a population to `dest`. features: names of outputs whose last axis are
    the features of the population. safe_cells: of a CSV file, whether ids that look like formulas get an apostrophe

    Raises ConfigError if `dest` is a URL, or its ending none of those above; PopulationError if there is something.
    """
    path = _local(dest)
    sweep(path)
    kind = KINDS.get(format_suffix(path.name))
    if kind is None:
        raise ConfigError(
            f"personalised outputs cannot be written as {path.suffix!r}, which is how {str(dest)!r} ends.",
            "End the name in .parquet, .csv or .npz for a file, in .zarr or nothing for a folder of arrays, in .pngs "
            "for one of pictures, in .videos for one of videos.",
        )
    if kind not in FOLDERS and str(dest).endswith(("/", os.sep)):
        raise ConfigError(
            f"{str(dest)!r} is the name of a folder that ends like a file.",
            f"Leave the last slash out, or the ending {path.suffix!r}.",
        )
    if safe_cells and kind is not CsvFiles:
        raise ConfigError("--safe-cells is for CSV files.", "End the name in .csv, or leave the option out.")
    made = kind(path, population, features)
    made.safe_cells = safe_cells
    return made


def _local(dest: str | Path) -> Path:
    path: Place = place(dest)
    if is_remote(path):
        raise ConfigError(
            f"Personalised outputs are not written to {path}.", "They hold clients' own data: name a local folder."
        )
    return Path(str(path))
