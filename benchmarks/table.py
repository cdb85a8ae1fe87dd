"""One table of claims: what we took, what the rival took, the ratio that was wanted and the one there is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A figure of ours beside a rival's; the ratio is ours / rival."""

    name: str
    ours: float
    rival: float
    unit: str
    most: float  # the ratio that was promised, or less

    @property
    def ratio(self) -> float:
        """Ours / rival."""
        return self.ours / self.rival

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.ratio <= self.most


def show(claims: list[Claim]) -> None:
    """Print the table."""
    width = max(len(claim.name) for claim in claims)
    print(f"{'claim':{width}}  {'ours':>12}  {'rival':>12}  {'ratio':>6}  {'wanted':>8}  holds?")
    for claim in claims:
        ours, rival = (f"{value:,.2f} {claim.unit}" for value in (claim.ours, claim.rival))
        said = "yes" if claim.holds else "NO"
        print(f"{claim.name:{width}}  {ours:>12}  {rival:>12}  {claim.ratio:6.3f}  {claim.most:8.3f}  {said}")
