"""Training scripts as users write them, each with its stalloc.yaml or ds.json, and the runner that compares runs."""
