"""Scenes: clients of several cameras in one population, one background for each camera.

In the pass for the range, clients send a signature: the median over some of their frames of the means of groups of
pixels, centred and of norm 1, so that gain and offset do not matter. The server joins clients whose signatures are
alike, one after the other, to the mean of those before (leader clustering: Hartigan, "Clustering Algorithms", 1975),
then moves each to the nearest mean. A scene has at least FEWEST_FRAMES frames; other clients belong to the scene that
is nearest. From then on every client answers for its own scene, which it finds by itself from the means.

A state of several scenes holds their images one after the other. With one scene nothing is added to any round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.methods.background.frames import frames_of
from fedcore.methods.background.state import BackgroundState
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.method import RoundInfo

GROUPS = 1024  # of pixels, whose means are a signature
LOOKED_AT = 32  # frames of a client, for its signature
SIGNED = 4096  # clients that send theirs, about
ALIKE, SAME = 0.6, 0.7  # cosines of a client and its scene, and of two scenes that are one
FEWEST_FRAMES = 12
MOST = 64
STEPS = 3
ROUNDING = 1e-6  # norm of a centred signature, over that before, below which there is nothing in it
ADDED = (
    "rows",
    "active_clients",
    "strangers",
    "moved",
    "modes",
    "bytes_up",
    "bytes_down",
)  # of rounds; of others the mean


def signature(samples: np.ndarray) -> np.ndarray:
    """(G,) float32 of the pixels (n, m) of frames: norm 1 and mean 0, or all 0 where every group has the same mean."""
    y = np.asarray(samples, np.float64)
    edges = np.linspace(0, y.shape[1], min(GROUPS, y.shape[1]) + 1).astype(np.int64)
    middle = np.median(np.add.reduceat(y, edges[:-1], axis=1) / np.diff(edges), axis=0)
    rest = middle - middle.mean()
    norm = float(np.linalg.norm(rest))
    flat = norm <= ROUNDING * float(np.linalg.norm(middle))
    return (np.zeros_like(rest) if flat else rest / norm).astype(np.float32)


def signatures(block: RowsBlock, pixels: np.ndarray, clients: Sequence[int]) -> np.ndarray:
    """(len(clients), G) float32 of clients of a leaf that have frames. Raises PopulationError as `frames_of`."""
    found = []
    for client in clients:
        parts: list[np.ndarray] = []
        for first, frames in frames_of(block, client):
            parts.append(frames[:, pixels])
            if first + len(frames) - int(block.ptr[client]) >= LOOKED_AT:
                break
        found.append(signature(np.concatenate(parts)))
    groups = min(GROUPS, len(pixels))
    return np.array(found, np.float32).reshape(len(found), groups)


def scene_numbers(block: RowsBlock, pixels: np.ndarray, leaders: np.ndarray) -> np.ndarray:
    """(C,) int64 scene of each client of a leaf, the one whose leader (S, G) is most like it; 0 without leaders."""
    numbers = np.zeros(block.clients, np.int64)
    if len(leaders):
        clients = np.flatnonzero(np.diff(block.ptr))
        numbers[clients] = (signatures(block, pixels, clients.tolist()) @ leaders.T).argmax(axis=1)
    return numbers


def leaders_of(own: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """(S, G) float32 means of the scenes of clients with these signatures (N, G) and numbers of frames (N,), of norm 1;
    the scene with most frames is the first. S >= 1."""
    sums: list[np.ndarray] = []
    for one in own[np.linalg.norm(own, axis=1) > 0]:
        near = _unit(np.array(sums)) @ one if sums else np.zeros(0)
        if len(near) and (near.max() > ALIKE or len(sums) == MOST):
            sums[int(near.argmax())] = sums[int(near.argmax())] + one
        else:
            sums.append(one.astype(np.float64))
    if not sums:
        return np.zeros((1, own.shape[1]), np.float32)
    leaders = _unit(np.array(sums))
    for _ in range(STEPS):
        leaders = leaders[_large_enough(own, frames, leaders)]
        numbers = (own @ leaders.T).argmax(axis=1)
        there = [scene for scene in range(len(leaders)) if (numbers == scene).any()]
        leaders = _unit(np.stack([own[numbers == scene].sum(axis=0, dtype=np.float64) for scene in there]))
    while len(kept := _large_enough(own, frames, leaders)) < len(leaders):
        leaders = leaders[kept]
    return leaders[kept].astype(np.float32)


def _large_enough(own: np.ndarray, frames: np.ndarray, leaders: np.ndarray) -> list[int]:
    """Scenes in the order of their frames, the largest and others with enough of them that are not those before."""
    sizes = np.bincount((own @ leaders.T).argmax(axis=1), frames, len(leaders))
    kept: list[int] = []
    for scene in map(int, np.argsort(-sizes, kind="stable")):
        alone = not kept or float((leaders[kept] @ leaders[scene]).max()) < SAME
        if not kept or (alone and sizes[scene] >= FEWEST_FRAMES):
            kept.append(scene)
    return kept


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    return unit


def matched(images: np.ndarray, pixels: np.ndarray, leaders: np.ndarray) -> np.ndarray | None:
    """The images (S, d) of given ones that show these scenes (S, G), in their order; None unless each has its own."""
    if len(images) == len(leaders) == 1:
        return images
    alike = leaders @ np.stack([signature(image[None, pixels]) for image in images]).T
    best = alike.argmax(axis=1)
    if len({*best.tolist()}) < len(leaders) or len(images) != len(leaders) or (alike.max(axis=1) <= ALIKE).any():
        return None
    found: np.ndarray = images[best]
    return found


# --- states -----------------------------------------------------------------------------------------------------------


def scenes_of(state: BackgroundState) -> list[BackgroundState]:
    """A state for each scene, as of a population that has it alone."""
    if not len(state.leaders):
        return [state]
    found, image, energy = [], 0, 0
    for scene, modes in enumerate(map(int, state.modes)):
        rows = modes + 1 if len(state.images) else 0
        noise = state.noise[scene * state.features : (scene + 1) * state.features]
        own: dict[str, Any] = {
            "images": state.images[image : image + rows],
            "energies": state.energies[energy : energy + modes],
        }
        alone: dict[str, Any] = {
            "leaders": np.zeros((0, 0), np.float32),
            "modes": np.zeros(0, np.int64),
            "spreads": np.zeros(0),
            "shakes": np.zeros(0, np.int64),
            "shaken": bool(state.shakes[scene]) if len(state.shakes) else False,
        }
        found.append(replace(state, **own, **alone, spread=float(state.spreads[scene]), noise=noise))
        image, energy = image + rows, energy + modes
    return found


def together(scenes: Sequence[BackgroundState], leaders: np.ndarray) -> BackgroundState:
    """One state of the states of scenes that have come equally far."""
    if len(scenes) == 1:
        return scenes[0]
    spreads = np.array([one.spread for one in scenes])
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in scenes]) for name in ("images", "energies", "noise")
    }
    return replace(
        scenes[0],
        leaders=leaders,
        modes=np.array([len(one.energies) for one in scenes], np.int64),
        spreads=spreads,
        spread=float(np.median(spreads)),
        shaken=any(one.shaken for one in scenes),
        shakes=np.array([one.shaken for one in scenes], np.int64),
        **joined,
    )


def of_scene(result: Mapping[str, Any], scene: int) -> dict[str, Any]:
    """The statistics of a scene, by their names in a population that has it alone."""
    end = f"_{scene}"
    return {name.removesuffix(end): value for name, value in result.items() if name.endswith(end)}


def round_of(infos: Sequence[RoundInfo]) -> RoundInfo:
    """The numbers of a round of all scenes: sums of counts, and means of others."""
    names = infos[0].scalars
    values = {name: np.array([info.scalars[name] for info in infos]) for name in names}
    return RoundInfo({name: float(v.sum() if name in ADDED else v.mean()) for name, v in values.items()})
