"""Scripts that are run by hand or by make: random kills and faults, also on a Slurm cluster, a demo
on such a cluster, checks of a GPU, and the speed of transformers' Trainer.
"""
