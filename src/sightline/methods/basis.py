"""Methods whose maps follow from another one's details, so that several of them cost one computation.

MDA's density is such an option: it is applied to the order and the magnitudes that a search has found. `explain` with
several methods, and the units of a benchmark on the same images, run the common part once.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sightline.types import Attribution, Method


@runtime_checkable
class SupportsBasis(Protocol):
    """A method whose map is made of what another one, its basis, has found, without a model pass."""

    @property
    def basis(self) -> Method:
        """The method that finds it; its own basis is itself."""
        ...

    def from_basis(self, attribution: Attribution) -> Attribution:
        """Return the attribution, given that of the basis with its details."""
        ...
