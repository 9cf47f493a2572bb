"""What all mixtures share: responsibilities and their products with the features of a row.

Every model here has statistics r_g * z(y), g = 1 .. G, where z are its features and r_g = P(component g | y; theta).
The E-step is therefore two matrix products around a softmax. Features are kept with rows last, (F, n): then every
elementwise step runs along contiguous memory, however small G and F are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.mixture_models.client_sums import (
    LANES,
    PaddedTile,
    Workspace,
    client_totals,
    divisors_of,
    fill,
    padded,
    padded_tiles,
    row_tiles,
    take_into,
    tile_rows,
    workspace,
)
from fedcore.methods.mixture_models.contract import Rows, Theta
from fedcore.methods.mixture_models.gaps import Gaps, joined
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR, Layout, check_array

LEAST_WEIGHT, LEAST_VARIANCE = 0.05, 0.02  # after a step that `nearest_inside` takes, of what was before


class Mixture(ABC):
    """Base of the mixtures. A subclass is a frozen dataclass with a field `components`."""

    components: int

    # --- what a model gives -------------------------------------------------------------------------------------------

    @abstractmethod
    def _layout(self) -> Layout: ...

    @abstractmethod
    def _prepare(self, theta: Theta) -> Any:
        """What `_log_joint` needs of theta, computed once for a leaf."""

    @abstractmethod
    def _columns(self, work: Workspace, n: int) -> np.ndarray:
        """(d, n): where in the working memory the rows go, as columns."""

    @abstractmethod
    def _expand(self, work: Workspace, n: int, joint_only: bool = False) -> Any:
        """Features of the rows that are there: (F, n) float64, first row ones. joint_only: those that `_log_joint`
        needs will do."""

    @abstractmethod
    def _log_joint(self, prepared: Any, z: Any, work: Workspace, each: int | None = None) -> np.ndarray:
        """(G, n) working memory: ln(pi_g f_g(y_j)), up to a number that is the same for all g. each: columns of a
        client, see `fedcore.methods.mixture_models.client_sums.Workspace.product`; None: no separate clients."""

    def _log_constant(self, prepared: Any, z: Any) -> np.ndarray | float:
        """(n,): what `_log_joint` leaves out."""
        return 0.0

    def _shared_total(self, z: Any, weights: np.ndarray | None) -> np.ndarray | None:
        """Statistics that do not depend on theta, summed over the rows."""
        return None

    def _shared_by_client(
        self, z: Any, work: Workspace, tile: PaddedTile, without: np.ndarray | None, weights: np.ndarray | None
    ) -> np.ndarray | None:
        """The same for every client of a padded tile, without the rows that are left out. weights: (n,) of its
        columns."""
        return None

    def _total(self, r: np.ndarray, z: Any, work: Workspace) -> np.ndarray:
        """(G, F): sum over rows of r_g z."""
        return r @ z.T

    def _by_client(self, r: np.ndarray, z: Any, work: Workspace, each: int) -> np.ndarray:
        """(c, G, F): the same for every client of a padded tile."""
        return work.client_products("sums", r, z, each)

    def _features(self, y: Rows, work: Workspace, joint_only: bool = False) -> Any:
        """Features of a tile's rows."""
        n = y.shape[0]
        fill(y, self._columns(work, n))
        return self._expand(work, n, joint_only)

    def _padded_features(self, y: Rows, work: Workspace, own: int, each: int) -> tuple[Any, np.ndarray | None]:
        """Features with `each` columns for every `own` rows, and which are to be left out: (n,) bool, None for none."""
        n = len(y) // own * each
        without = fill(y, self._columns(work, n), own, each)
        return self._expand(work, n), without

    # --- rows with missing entries, of models that take them ---------------------------------------------------------

    def _gaps(self, z: Any, r: np.ndarray) -> Gaps | None:
        """The rows with missing entries, taken out of the features z (F, n) and of what was computed from them, r
        (G, n), where 0 stands in their place; None if there are none."""
        return None

    def _gap_sums(
        self, theta: Theta, gaps: Gaps, weights: np.ndarray | None = None, owners: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Statistics of rows with gaps, (c, G, F), and those that no component owns, (c, shared): summed over rows of
        one owner, c of them in the order of `owners` (n,), which ascend; None: all rows have one. And their
        `_gap_log_joint`."""
        raise NotImplementedError

    def _gap_log_joint(self, theta: Theta, gaps: Gaps) -> np.ndarray:
        """(G, n): ln(pi_g f_g) of what was seen of rows with gaps."""
        raise NotImplementedError

    @cached_property
    def layout(self) -> Layout:
        return self._layout()

    def _prepared(self, theta: Theta) -> Any:
        """`_prepare`; the latest one is kept, because all leaves of a round ask for the same."""
        kept = self.__dict__.get("_latest")
        if kept is None or kept[0] is not theta:
            kept = self.__dict__["_latest"] = (theta, self._prepare(theta))
        return kept[1]

    def _tile(self, y: Rows) -> int:
        """Rows answered together: a function of the model and the kind of rows alone."""
        return tile_rows(sum(self.layout.kinds) + 2 * self.components)

    @property
    def q(self) -> int:
        return self.layout.q

    @property
    def blocks(self) -> tuple[slice, ...]:
        return self.layout.blocks

    # --- E-step -------------------------------------------------------------------------------------------------------

    def e_total(self, theta: Theta, y: Rows, weights: np.ndarray | None = None) -> np.ndarray:
        return self._e_pass([theta], y, weights, None)[0]

    def e_totals_and_log_likelihoods(
        self, thetas: Sequence[Theta], y: Rows, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        values = np.empty((len(thetas), y.shape[0]))
        return self._e_pass(thetas, y, weights, values), values

    def _e_pass(
        self, thetas: Sequence[Theta], y: Rows, weights: np.ndarray | None, values: np.ndarray | None
    ) -> np.ndarray:
        """(R, q) `e_total` of each theta; and `log_likelihood` in values (R, N), if requested, with the bits
        that each has alone."""
        prepared, size = [self._prepare(theta) for theta in thetas], self._tile(y)
        totals, gaps_of_tiles = np.zeros((len(thetas), self.q)), list[Gaps]()
        with workspace(size) as work:
            for rows in row_tiles(y.shape[0], size):
                z = self._features(y[rows], work)
                w = None if weights is None else np.asarray(weights, np.float64)[rows]
                gaps = None
                for i in range(len(thetas)):
                    r, top, sums = softmax(self._log_joint(prepared[i], z, work))
                    if i == 0:
                        gaps = self._gaps(z, r)
                        if gaps is not None:
                            gaps_of_tiles.append(Gaps(gaps.columns + rows.start, gaps.x))
                    elif gaps is not None:
                        r[:, gaps.columns] = 0.0
                    if values is not None:
                        values[i, rows] = top + np.log(sums) + self._log_constant(prepared[i], z)
                    if w is not None:
                        r *= w
                    totals[i] += self.layout.pack(self._total(r, z, work), self._shared_total(z, w))
            if gaps_of_tiles:
                all_gaps = joined(gaps_of_tiles)
                own_weights = None if weights is None else np.asarray(weights, np.float64)[all_gaps.columns]
                for i, theta in enumerate(thetas):
                    own, shared, joint = self._gap_sums(theta, all_gaps, own_weights)
                    totals[i] += self.layout.pack(own, shared)[0]
                    if values is not None:
                        values[i, all_gaps.columns] = log_sum(joint)
        return totals

    def e_mean(self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return self.client_means(theta, y, ptr, weights)[0]

    def client_means(
        self, theta: Theta, y: Rows, ptr: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`e_mean`, and the rows (C,) float64 of every client that are in it, by their weights: all, but those that `y`
        leaves out. For dense rows every client's part depends only on the client's rows, to the last bit
        (`fedcore.methods.mixture_models.client_sums`).

        Raises TypeError for rows with weights of which some are left out.
        """
        prepared, size, rows_of_clients = self._prepared(theta), self._tile(y), np.diff(ptr)
        sums = np.empty((len(ptr) - 1, self.q))
        several = rows_of_clients > padded(size)  # in several tiles, which are added up
        sums[(rows_of_clients == 0) | several] = 0.0
        counts = client_totals(ptr, weights)
        with workspace(size) as work:
            for tile in padded_tiles(ptr, size):
                each, rows = tile.each, take_into(y, tile.rows, work)
                z, without = self._padded_features(rows, work, tile.own or each, each)
                r = responsibilities(self._log_joint(prepared, z, work, each))
                gaps = self._gaps(z, r)
                missing = tile.leave_out(r, without)
                w = None if weights is None else tile.weights_of(weights)
                if missing is not None:
                    if w is not None:
                        raise TypeError("rows with weights cannot be left out")
                    counts[tile.clients] -= missing
                if w is not None:
                    r *= w
                shared = self._shared_by_client(z, work, tile, without, w)
                own = self._by_client(r, z, work, each)
                if gaps is not None:
                    self._add_gaps(theta, gaps.without(tile.padding), each, own, shared, w)
                there = tile.whole and isinstance(tile.clients, slice)
                together = work.array("packed", work.columns // LANES, self.q)[: len(own)]
                own = self.layout.pack(own, shared, out=sums[tile.clients] if there else together)
                if tile.whole:  # while it is in the cache
                    own *= 1.0 / divisors_of(counts[tile.clients])[:, None]
                    if not there:
                        sums[tile.clients] = own
                else:
                    sums[tile.clients] += own
        if several.any():
            sums[several] *= 1.0 / divisors_of(counts[several])[:, None]
        return sums, counts

    def _add_gaps(
        self,
        theta: Theta,
        gaps: Gaps,
        each: int,
        own: np.ndarray,
        shared: np.ndarray | None,
        weights: np.ndarray | None,
    ) -> None:
        """Adds the statistics of rows with gaps to those of their clients, who have `each` columns: own (c, G, F),
        shared (c, shared). weights: of the columns."""
        if not len(gaps.columns):
            return
        owners = gaps.columns // each
        sums, more, _ = self._gap_sums(theta, gaps, None if weights is None else weights[gaps.columns], owners)
        clients = np.unique(owners)
        own[clients] += sums
        if shared is not None:
            shared[clients] += more

    # --- likelihood and outputs ---------------------------------------------------------------------------------------

    def log_likelihood(self, theta: Theta, y: Rows) -> np.ndarray:
        prepared, size = self._prepare(theta), self._tile(y)
        values, gaps_of_tiles = np.empty(y.shape[0]), list[Gaps]()
        with workspace(size) as work:
            for rows in row_tiles(y.shape[0], size):
                z = self._features(y[rows], work, joint_only=True)
                log_joint = self._log_joint(prepared, z, work)
                gaps = self._gaps(z, log_joint)
                values[rows] = log_sum(log_joint) + self._log_constant(prepared, z)
                if gaps is not None:
                    gaps_of_tiles.append(Gaps(gaps.columns + rows.start, gaps.x))
            if gaps_of_tiles:
                all_gaps = joined(gaps_of_tiles)
                values[all_gaps.columns] = log_sum(self._gap_log_joint(theta, all_gaps))
        return values

    def personalise(self, theta: Theta, y: Rows) -> dict[str, np.ndarray]:
        """responsibilities (N, G) float64, every row adds up to 1."""
        prepared, size = self._prepare(theta), self._tile(y)
        r, gaps_of_tiles = np.empty((y.shape[0], self.components)), list[Gaps]()
        with workspace(size) as work:
            for rows in row_tiles(y.shape[0], size):
                z = self._features(y[rows], work, joint_only=True)
                own = responsibilities(self._log_joint(prepared, z, work))
                gaps = self._gaps(z, own)
                r[rows] = own.T
                if gaps is not None:
                    gaps_of_tiles.append(Gaps(gaps.columns + rows.start, gaps.x))
            if gaps_of_tiles:
                all_gaps = joined(gaps_of_tiles)
                r[all_gaps.columns] = responsibilities(self._gap_log_joint(theta, all_gaps)).T
        return {"responsibilities": r}

    # --- components ---------------------------------------------------------------------------------------------------

    def own_parameters(self, theta: Theta) -> list[str]:
        """Names of the parameters that belong to single components, without the weights."""
        return [name for name in theta if name != "weights"]

    @abstractmethod
    def _alone(self, share: float) -> Self:
        """The model of one component of this weight > 0, with the same penalty relative to the component."""

    def of_component(self, theta: Theta, k: int) -> tuple[Self, Theta]:
        """Component k as a mixture of one, and its parameters."""
        own = {name: theta[name][[k]] for name in self.own_parameters(theta)}
        model = self._alone(max(float(theta["weights"][k]), np.finfo(float).tiny))
        return model, {**theta, **own, "weights": np.ones(1)}

    @abstractmethod
    def along_longest_axis(self, theta: Theta, y: Rows) -> np.ndarray:
        """(N,): how far each row is from what a mixture of one component expects, along the axis on which the sum of
        the squares of that is largest. Two groups that the component covers differ in the sign."""

    # --- weights ------------------------------------------------------------------------------------------------------

    def _weights_of(self, counts: np.ndarray, a: float = 0.0) -> np.ndarray:
        """pi (G,) from floored s0 (G,): (s0 + a) / (sum s0 + G a)."""
        return (counts + a) / (counts.sum() + self.components * a)

    def nearest_inside(self, theta: Theta, s: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, bool]:
        """A step of EM whose statistic has errors, kept inside the domain component by component.

        theta, s: before the step, theta = T(s); moved: (q,) the statistic after it. A component whose weight falls to
        LEAST_WEIGHT of what it was, or below, keeps its parameters and LEAST_WEIGHT of its weight. No variance in any
        direction falls below LEAST_VARIANCE of what it was. Weights add up to 1. Returns the statistic (q,) and whether
        more than the sum of the weights was changed.
        """
        after = np.array(moved, np.float64)
        own = len(self.layout.kinds)
        before, parts = self.layout.unpack(s)[:own], self.layout.unpack(after)
        small = parts[0][:, 0] <= LEAST_WEIGHT * before[0][:, 0]
        for part, old in zip(parts, before, strict=False):
            part[small] = LEAST_WEIGHT * old[small]
        total = parts[0].sum()
        for part in parts[:own]:
            part /= total
        return after, self._keep_variances(theta, before, parts) or bool(small.any())

    def _keep_variances(self, theta: Theta, before: list[np.ndarray], parts: list[np.ndarray]) -> bool:
        """Raises, in the parts of a statistic, the second moments that make a variance less than LEAST_VARIANCE of that
        in theta. Returns whether there were any."""
        return False

    def least_ratio(self, before: Theta, after: Theta) -> float:
        """See `fedcore.methods.mixture_models.contract.CurvedEM`. A subclass adds its variances."""
        return float(np.min(after["weights"] / np.maximum(before["weights"], WEIGHT_FLOOR)))

    def _counts_of(self, weights: np.ndarray, a: float = 0.0) -> np.ndarray:
        """s0 (G,) > 0 with `_weights_of(s0, a) == weights`; its sum is 1 unless a weight is too small for that."""
        total = max(1.0, 2.0 * (a / float(weights.min()) - self.components * a))
        return weights * (total + self.components * a) - a


def log_sum(log_joint: np.ndarray) -> np.ndarray:
    """(n,) ln of the sum of exp over the first axis of (G, n), which is overwritten."""
    top: np.ndarray = log_joint.max(axis=0)
    log_joint -= top
    np.exp(log_joint, out=log_joint)
    return top + np.log(log_joint.sum(axis=0))


def responsibilities(log_joint: np.ndarray) -> np.ndarray:
    """Softmax over the first axis, in place: (G, n), every column adds up to 1."""
    return softmax(log_joint)[0]


def softmax(log_joint: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(`responsibilities`, (n,) the largest of each column, (n,) the sum of exp of the others less it)."""
    top = log_joint.max(axis=0)
    log_joint -= top
    np.exp(log_joint, out=log_joint)
    sums = log_joint.sum(axis=0)
    log_joint *= 1.0 / sums
    return log_joint, top, sums


def log_weights(theta: Theta) -> np.ndarray:
    """ln pi (G,); -inf for a weight of 0."""
    with np.errstate(divide="ignore"):
        return np.log(theta["weights"])


def check_weights(theta: Theta, components: int) -> np.ndarray:
    """The weights as float64 (G,). Raises ConfigError unless they are positive and add up to 1."""
    weights = check_array(theta, "weights", (components,))
    if (weights <= 0).any() or abs(weights.sum() - 1.0) > 1e-6:
        raise ConfigError("the weights must be positive and add up to 1.")
    return weights / weights.sum()


def floored_counts(counts: np.ndarray) -> np.ndarray:
    """s0 (G,), every entry at least WEIGHT_FLOOR."""
    return np.maximum(counts.ravel(), WEIGHT_FLOOR)


def alive(counts: np.ndarray, margin: float) -> bool:
    """Whether every s0_g exceeds the margin (and the floor)."""
    return bool((counts > max(margin, WEIGHT_FLOOR)).all())


def require_finite(s: np.ndarray) -> np.ndarray:
    """s as float64. Raises ValueError if it is not finite: no parameter follows from it."""
    s = np.asarray(s, np.float64)
    if not np.isfinite(s).all():
        raise ValueError("the statistic is not finite")
    return s


def longest(errors: np.ndarray) -> np.ndarray:
    """(N,): the errors (N, p) along their longest axis."""
    return errors @ np.linalg.eigh(errors.T @ errors)[1][:, -1]
