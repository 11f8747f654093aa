"""Files at other places, by fsspec: downloaded data, the mirror of a run, and fetching a run from there."""
