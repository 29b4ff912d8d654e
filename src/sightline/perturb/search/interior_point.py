r"""A convex fit that stops early, as the released MDA's does.

The released program hands its quadratic programme to a primal-dual interior-point solver at its default tolerances
:cite:p:`vandenberghe2010`, which ends up to 3e-4 short of the optimum. To reproduce its maps, the same iterates are
computed here: least-squares start, Nesterov–Todd scaling, Mehrotra's correction, 99 % of the longest step.
"""

from __future__ import annotations

import numpy as np

from sightline.perturb.search.magnitudes import Array

GAP, RELATIVE, FEASIBLE, ROUNDS = 1e-7, 1e-6, 1e-7, 100


def early_fit(curve: Array) -> Array:
    """Return nearly the convex curve in [0, 1] between the same endpoints that is closest to this one."""
    n = len(curve)
    bends = np.diff(np.eye(n), 2, axis=0)
    inequality = np.vstack([-bends, -np.eye(n), np.eye(n)])
    bound = np.concatenate([np.zeros(n - 2 + n), np.ones(n)])
    return _solve(2 * curve, inequality, bound, np.eye(n)[[0, -1]], curve[[0, -1]])


def _solve(pull: Array, g: Array, h: Array, a: Array, b: Array) -> Array:
    """Minimise xᵀx − pull·x subject to g x ≤ h, a x = b."""
    n, slack = len(pull), np.ones(len(h))
    x, y, z = _step(slack, g, a, pull, b, h)
    s, z = _inside(-z), _inside(z)
    scale = [max(1.0, float(np.linalg.norm(v))) for v in (pull, b, h)]
    for _ in range(ROUNDS):
        gap = float(s @ z)
        value = float(x @ x - pull @ x)
        residuals = 2 * x - pull + a.T @ y + g.T @ z, a @ x - b, s + g @ x - h
        off = [float(np.linalg.norm(r)) / size for r, size in zip(residuals, scale, strict=True)]
        dual = value + float(y @ residuals[1] + z @ residuals[2]) - gap
        relative = gap / -value if value < 0 else gap / dual if dual > 0 else np.inf
        if max(off) <= FEASIBLE and (gap <= GAP or relative <= RELATIVE):
            break
        w, centre = np.sqrt(s / z), np.sqrt(s * z)
        sigma, correction = 0.0, np.zeros_like(s)
        for reach in (1.0, 0.99):
            wanted = (sigma * gap / len(s) - centre**2 - correction) / centre
            dx, dy, dz = _step(w, g, a, -residuals[0], -residuals[1], -residuals[2] - w * wanted)
            dz = w * dz
            ds = wanted - dz
            furthest = max(0.0, float((-ds / centre).max()), float((-dz / centre).max()))
            length = 1.0 if furthest == 0 else min(1.0, reach / furthest)
            sigma = min(1.0, max(0.0, 1 - length + float(ds @ dz) / gap * length**2)) ** 3
            correction = ds * dz
        x, y, s, z = x + length * dx, y + length * dy, s + length * w * ds, z + length * dz / w
    return x[:n]


def _step(w: Array, g: Array, a: Array, p: Array, q: Array, r: Array) -> tuple[Array, Array, Array]:
    """Solve 2x + aᵀy + gᵀz = p, a x = q, g x − w² z = r."""
    weighed = g / w[:, None] ** 2
    size = len(p)
    system = np.block([[2 * np.eye(size) + g.T @ weighed, a.T], [a, np.zeros((len(a), len(a)))]])
    solution = np.linalg.solve(system, np.concatenate([p + weighed.T @ r, q]))
    x = solution[:size]
    return x, solution[size:], (g @ x - r) / w**2


def _inside(v: Array) -> Array:
    """Move a vector into the positive orthant unless it lies there already."""
    shift = float((-v).max())
    inside: Array = v + (1 + shift) if shift >= -1e-8 * max(1.0, float(np.linalg.norm(v))) else v
    return inside
