"""Fit the residual ln(seconds / roofline): a Gaussian process and boosted trees over the quantities of the kernels.

The two err in different ways: the process is smooth and exact near what was measured, the trees find steps
(alignments, changes of algorithm), and their mean is better than either for most families. Hyper-parameters maximise
the marginal likelihood with weak priors, which keep 25 lengths from 25 kernels; the gradient with respect to all
lengths is one matrix product. Trees are shrunk (0.1), see a third of the columns at each split and have at
least five kernels in a leaf.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.optimize import minimize
from sklearn import config_context
from sklearn.ensemble import GradientBoostingRegressor

from calibration.gaussian_process import GaussianProcess
from calibration.trees import LEAVES, Trees
from oracle.estimate import Floats

LARGEST_LOG_RESIDUAL = 1.5
"""Residuals are clipped there (a factor of 4.5) for the process: one kernel must not set the variance of a family."""

_MOST_FITTED = 300
MOST_KEPT = 350
"""Kernels that a process remembers: it takes their square in time to read back, and 100 kB to store."""

_LEAST_SCALE = 0.15
_CLAMP = 0.25
_TREES = 150
_RATE = 0.1
_MIN_LEAF = 5


def as_stored(inputs: Floats) -> Floats:
    """Numbers rounded to float32, as they are stored: fit and reload see the same ones."""
    found: Floats = inputs.astype(np.float32).astype(np.float64)
    return found


def _likelihood(theta: Floats, inputs: Floats, targets: Floats, prior: tuple[Floats, Floats]) -> tuple[float, Floats]:
    """Negative log posterior of (ln variance, ln lengths..., ln noise) and its gradient."""
    count = len(targets)
    variance, lengths, noise = np.exp(theta[0]), np.exp(theta[1:-1]), np.exp(theta[-1])
    scaled = inputs / lengths
    squares = (scaled * scaled).sum(axis=1)
    distance = np.sqrt(5 * np.maximum(squares[:, None] + squares - 2 * scaled @ scaled.T, 0.0))
    decay = variance * np.exp(-distance)
    process = decay * (1 + distance + distance * distance / 3)
    covariance = process.copy()
    covariance[np.diag_indices(count)] = variance * (1 + 1e-6) + noise
    try:
        factor = cho_factor(covariance, lower=True, check_finite=False)
    except LinAlgError:
        return 1e10, np.zeros_like(theta)
    weights = cho_solve(factor, targets, check_finite=False)
    outer = cho_solve(factor, np.eye(count), check_finite=False) - np.outer(weights, weights)
    away = (theta - prior[0]) / prior[1]
    value = 0.5 * targets @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * away @ away
    slope = outer * decay * (1 + distance) * (5 / 3)
    gradient = np.empty_like(theta)
    gradient[0] = 0.5 * np.einsum("ij,ij->", outer, process)
    gradient[1:-1] = slope.sum(axis=1) @ (scaled * scaled) - (scaled * (slope @ scaled)).sum(axis=0)
    gradient[-1] = 0.5 * noise * np.trace(outer)
    return float(value), gradient + away / prior[1]


def fit_process(
    inputs: Floats, residuals: Floats, start: GaussianProcess | None = None, rounds: int = 60
) -> GaussianProcess:
    """Fit a Gaussian process to residuals.

    Args:
        inputs: shape (n, d); residuals: shape (n,).
        residuals: ln(seconds / roofline).
        start: a process on much the same kernels, whose hyper-parameters are a good start.
        rounds: the most iterations.
    """
    if len(residuals) > MOST_KEPT:  # the trees see the others
        kept = np.random.default_rng(1).choice(len(residuals), MOST_KEPT, replace=False)
        inputs, residuals = inputs[kept], residuals[kept]
    inputs = as_stored(inputs)
    middle, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), _LEAST_SCALE)
    centre = float(np.median(residuals))
    targets = np.clip(residuals - centre, -LARGEST_LOG_RESIDUAL, LARGEST_LOG_RESIDUAL)
    scaled = (inputs - middle) / scale
    width, spread = inputs.shape[1], max(float(targets.var()), 1e-4)
    prior = np.array([np.log(spread), *[np.log(4.0)] * width, np.log(0.1 * spread)])
    prior_sd = np.array([1.0, *[1.0] * width, 1.5])
    begin = prior
    if start is not None:
        begin = np.array([np.log(start.variance), *np.log(start.lengths), np.log(start.noise)])
    some = np.arange(len(targets))
    if len(some) > _MOST_FITTED:
        some = np.random.default_rng(0).choice(len(targets), _MOST_FITTED, replace=False)
    bounds = [(-12.0, 3.0), *[(-1.5, 4.0)] * width, (-14.0, 2.0)]
    found = minimize(
        _likelihood,
        np.clip(begin, [low for low, _ in bounds], [high for _, high in bounds]),
        args=(scaled[some], targets[some], (prior, prior_sd)),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": rounds},
    )
    variance, lengths, noise = np.exp(found.x[0]), np.exp(found.x[1:-1]), np.exp(found.x[-1])
    lo, hi = inputs.min(axis=0) - _CLAMP * scale, inputs.max(axis=0) + _CLAMP * scale
    return GaussianProcess(inputs, targets, centre, middle, scale, lo, hi, lengths, float(variance), float(noise))


def fit_trees(inputs: Floats, residuals: Floats, weights: Floats | None = None) -> Trees:
    """Fit boosted trees to residuals: inputs (n, d), residuals (n,), weights (n,) of the kernels or equal ones."""
    model = GradientBoostingRegressor(
        learning_rate=_RATE,
        n_estimators=_TREES,
        max_leaf_nodes=LEAVES,
        max_depth=None,
        min_samples_leaf=min(_MIN_LEAF, max(1, len(residuals) // 4)),
        max_features=1 / 3,
        random_state=0,
    )
    clipped = np.clip(residuals, -2 * LARGEST_LOG_RESIDUAL, 2 * LARGEST_LOG_RESIDUAL)
    with config_context(assume_finite=True, skip_parameter_validation=True):  # half the time of such small trees
        model.fit(as_stored(inputs), clipped, weights)
    grown = [estimator.tree_ for estimator in model.estimators_[:, 0]]
    slots = max(tree.node_count for tree in grown)
    itself = np.tile(np.arange(slots, dtype=np.int16), (len(grown), 1))
    feature, left, right = np.zeros_like(itself), itself.copy(), itself.copy()
    cut = np.zeros(itself.shape)
    for row, tree in enumerate(grown):
        nodes, inner = slice(tree.node_count), tree.children_left >= 0
        feature[row, nodes] = np.where(inner, tree.feature, 0)
        left[row, nodes] = np.where(inner, tree.children_left, itself[row, nodes])
        right[row, nodes] = np.where(inner, tree.children_right, itself[row, nodes])
        cut[row, nodes] = np.where(inner, tree.threshold, _RATE * tree.value[:, 0, 0])
    return Trees.of_nodes(np.stack([left, right]), feature, cut.astype(np.float32), float(model.init_.constant_[0, 0]))
