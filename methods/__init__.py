"""The methods, one a file; the file's name is the method's name. Adding a file adds a method everywhere.

See docs/adding_a_method.md.
"""
