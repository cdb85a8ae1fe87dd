"""The capacity plan: memory, number of instances, sensitivity, and what the errors of simulated times mean."""
