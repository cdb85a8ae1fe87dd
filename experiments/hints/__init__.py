"""What hints are worth: policies with an agent platform's knowledge beside LRU, ARC and upper bounds, on agent sessions."""
