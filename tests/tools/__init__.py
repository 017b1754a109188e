"""Scripts that are run by hand or by make: kills and faults, a Slurm cluster's too, its demo, and
pages of the docs.
"""
