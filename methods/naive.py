"""Naive: continued pre-training on each domain in turn, the paper's lower bound.

Take it as the lower bound: what happens if nothing is done.

Gururangan et al. 2020, "Don't stop pretraining".
"""

from dataclasses import dataclass

from benchmark.training.method import LifelongMethod


@dataclass
class Naive(LifelongMethod):
    title = "Naive"
    may_equal_naive = True
