"""What others may see: numbering, release profiles, k-sharing, the audit, the data card."""
