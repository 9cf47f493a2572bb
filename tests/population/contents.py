"""What a population holds, as plain Python values to compare."""

import csv

import numpy as np
import zarr

from fedcore.population import identifiers, layout


def counts_of(population, heldout=False):
    """{client id: {feature: count}}."""
    found = {}
    for index in range(len(population.blocks)):
        block = population.read(index, heldout=heldout)
        block = block.heldout if heldout else block
        for number, one in enumerate(population.client_ids(index).tolist()):
            low, high = block.indptr[number : number + 2]
            pairs = zip(block.indices[low:high].tolist(), block.data[low:high].tolist(), strict=True)
            assert one not in found or not one  # clients that were forgotten have no id
            found[one] = {feature: int(count) for feature, count in pairs}
    return found


def rows_of(population, heldout=False):
    """{client id: list of rows, in order; NaN as None}."""
    found = {}
    for index in range(len(population.blocks)):
        block = population.read(index, heldout=heldout)
        block = block.heldout if heldout else block
        for number, one in enumerate(population.client_ids(index).tolist()):
            rows = block.x[block.ptr[number] : block.ptr[number + 1]]
            assert one not in found or not one  # clients that were forgotten have no id
            found[one] = [tuple(None if np.isnan(value) else float(value) for value in row) for row in rows]
    return found


def ids_of(population):
    return [one for index in range(len(population.blocks)) for one in population.client_ids(index).tolist()]


def write_csv(file, header, rows):
    with open(file, "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(header)
        writer.writerows(rows)
    return file


def everything_in(folder) -> bytes:
    """All bytes below the folder: of files as they are, and of arrays decoded."""
    found = [file.read_bytes() for file in layout.files_of(folder)]
    for metadata in folder.rglob("zarr.json"):
        if b'"array"' in metadata.read_bytes():
            found.append(np.ascontiguousarray(zarr.open_array(metadata.parent, mode="r")[...]).tobytes())
    return b"\n".join(found)


def ids_below(folder) -> set[str]:
    """Every id in the slots below the folder, whether a manifest names them or not."""
    found = set()
    for ids in folder.rglob("ids"):
        arrays = [zarr.open_array(ids / name, mode="r")[...] for name in ("bytes", "ptr") if (ids / name).is_dir()]
        if len(arrays) == 2:
            found.update(identifiers.decode(*arrays).tolist())
    return found
