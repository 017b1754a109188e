"""Scripts that are run by hand or by make: faults on a Slurm cluster, its demo, measurements of growth."""
