"""Pictures of mixtures, as axes of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import ConfigError, needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 5000  # of the rows that are drawn
RADII = (1.0, 2.0)  # standard deviations
BINS = 60
FARTHEST = 10.0  # distances between the quartiles


def plot_components(mixture: Any, X: Any = None, columns: tuple[int, int] = (0, 1), ax: Axes | None = None) -> Axes:
    """Draw the components of a fitted mixture in two of its columns.

    Each component has its number and ellipses of 1 and 2 standard deviations. A line is wider, the larger the weight.

    mixture: an estimator with weights_, means_ and covariances_, of fedcore or scikit-learn
    X: (n, d) rows to draw as points, at most 5,000 of them, chosen at random; the points are not private
    columns: numbers of the two columns, from 0
    ax: axes to draw on; None: new ones
    Returns the axes of matplotlib.
    Raises ConfigError for a model without covariances and for columns that it does not have; ExtraMissing.

    >>> import numpy as np, fedcore
    >>> from sklearn.mixture import GaussianMixture
    >>> x = np.concatenate([np.random.default_rng(0).normal(size=(200, 2)) + at for at in (-4, 4)])
    >>> ax = fedcore.plot_components(GaussianMixture(2, random_state=0).fit(x), x)
    >>> len(ax.patches), ax.get_xlabel()
    (4, 'column 0')
    """
    with needs("fedcore.plot_components", "matplotlib"):
        from matplotlib import pyplot
        from matplotlib.patches import Ellipse
    if not hasattr(mixture, "covariances_"):
        raise ConfigError(f"{type(mixture).__name__} has no covariances.", "Draw a fitted mixture of Gaussians.")
    means, weights = mixture.means_, mixture.weights_
    first, second = columns
    if not (0 <= first < means.shape[1] and 0 <= second < means.shape[1] and first != second):
        raise ConfigError(
            f"columns {columns} are not two of the {means.shape[1]} columns.", "They are numbered from 0."
        )
    if ax is None:
        ax = pyplot.subplots()[1]
    if X is not None:
        x = np.asarray(X)
        shown = np.random.default_rng(0).permutation(len(x))[:POINTS]
        ax.scatter(x[shown, first], x[shown, second], s=4, color="0.6", linewidths=0)
    for k, covariance in enumerate(_full_covariances(mixture)):
        variances, axes = np.linalg.eigh(covariance[np.ix_(columns, columns)])
        angle = float(np.degrees(np.arctan2(axes[1, 1], axes[0, 1])))
        wide, high = 2.0 * np.sqrt(np.maximum(variances[::-1], 0.0))
        colour, width = f"C{k % 10}", 0.75 + 3.0 * float(weights[k])
        centre = means[k, first], means[k, second]
        for radius in RADII:
            ring = Ellipse(centre, radius * wide, radius * high, angle=angle, fill=False, color=colour, linewidth=width)
            ax.add_patch(ring)
        ax.annotate(str(k), centre, color=colour, ha="center", va="center")
    names = getattr(mixture, "feature_names_in_", None)
    label = [f"column {column}" if names is None else str(names[column]) for column in columns]
    ax.set(xlabel=label[0], ylabel=label[1])
    ax.autoscale_view()
    return ax


def plot_scores(mixture: Any, X: Any, share: float = 0.01, ax: Axes | None = None) -> Axes:
    """Draw a histogram of the log densities of rows, with the least likely rows in another colour.

    Log densities far below the first quartile are drawn at a limit, so that a few of them do not hide the others. The
    limit is 10 times the distance between the quartiles.

    mixture: an estimator with `score_samples`
    X: (n, d) rows, which are not private; rows without a density are left out
    share: fraction of the rows to colour, from 0 to 1
    ax: axes to draw on; None: new ones
    Returns the axes of matplotlib; the x axis is in nats.
    Raises ConfigError for a model that gives rows no density; ExtraMissing.

    >>> import numpy as np, fedcore
    >>> from sklearn.mixture import GaussianMixture
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> fedcore.plot_scores(GaussianMixture().fit(x), x).get_xlabel()
    'log density, nats'
    """
    with needs("fedcore.plot_scores", "matplotlib"):
        from matplotlib import pyplot
    if not hasattr(mixture, "score_samples"):
        raise ConfigError(f"{type(mixture).__name__} gives rows no log density.", "Draw the scores of a mixture.")
    scores = mixture.score_samples(X)
    scores = np.sort(scores[np.isfinite(scores)])
    if ax is None:
        ax = pyplot.subplots()[1]
    few = round(share * len(scores))
    if len(scores):
        low, high = np.quantile(scores, (0.25, 0.75))
        scores = np.maximum(scores, low - FARTHEST * (high - low))
    edges = np.linspace(scores[0], scores[-1], BINS + 1).tolist() if len(scores) else [0.0, 1.0]
    ax.hist(scores[few:], edges, color="0.6")
    if few:
        ax.hist(scores[:few], edges, color="C3", label=f"least likely {few} of {len(scores)} rows")
        ax.legend()
    ax.set(xlabel="log density, nats", ylabel="rows")
    return ax


def _full_covariances(mixture: Any) -> np.ndarray:
    """(G, d, d) of any type of covariance."""
    covariances, (g, d) = np.asarray(mixture.covariances_), mixture.means_.shape
    degrees = getattr(mixture, "degrees_of_freedom_", np.inf)
    if np.isfinite(degrees):  # they are scale matrices
        covariances = covariances * (degrees / (degrees - 2.0))
    kind = getattr(mixture, "covariance_type", "full")
    if kind == "tied":
        return np.broadcast_to(covariances, (g, d, d))
    if kind == "full":
        return covariances
    variances = covariances if kind == "diag" else np.repeat(covariances[:, None], d, axis=1)
    full: np.ndarray = variances[:, :, None] * np.eye(d)
    return full
