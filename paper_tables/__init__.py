"""One small file a table or figure, and what the paper prints for it.

The file's name is the exhibit's name, and that of the files it renders to.

To add one, add a file with a module-level `EXHIBIT`, and name it under `tables` in a suite. Where
the records of training are not enough for it, `MEASURE` names a look into models. What the paper
prints for it, if anything, goes to `printed/NAME.csv` (columns: see `analysis.exhibits`).
"""
