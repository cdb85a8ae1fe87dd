"""The live `PrefixCache`, compiled: token by token, for an engine to use."""
