"""What a prefix cache would hit: policies, engines, tiers, sweeps, and the live `PrefixCache`."""
