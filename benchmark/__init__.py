"""The experiment: streams of domains, models that grow, methods under one budget, records of what
happened.
"""

__version__ = "0.1.0"
