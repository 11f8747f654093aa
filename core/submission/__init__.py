"""Runs on a cluster: the batch script of a job, submitting it, and what the batch system says about it."""
