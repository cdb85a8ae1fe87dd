"""Before others may see a trace: release profiles and their steps, k-sharing, the audit and the data card."""

from .profiles import PROFILES, Profile, profile
from .release import Released, release

__all__ = ["PROFILES", "Profile", "Released", "profile", "release"]
