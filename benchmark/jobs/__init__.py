"""How a suite's work is done: the plan, the executors that do it, and the states of runs."""
