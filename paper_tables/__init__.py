"""One small file per table or figure, and what the paper prints for it.

The file's name is also the name of the exhibit and of the files it renders to.

To add one, add a file with a module-level `EXHIBIT`, and name it under `tables` in a suite. If it
needs more than the records of training, `MEASURE` names the measure of models that it needs. What
the paper prints for it, if anything, goes to `printed/NAME.csv` (columns: see `analysis.exhibits`).
"""
