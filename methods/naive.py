"""Naive: continued pre-training on each domain in turn (Gururangan et al. 2020); the paper's lower
bound.
"""

from dataclasses import dataclass

from benchmark.training.method import LifelongMethod


@dataclass
class Naive(LifelongMethod):
    title = "Naive"
    may_be_naive = True
