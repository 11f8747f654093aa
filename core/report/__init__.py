"""What came out of a run: one page that opens anywhere, made from the files in the run's folder and nothing else."""
