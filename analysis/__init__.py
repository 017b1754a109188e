"""From records to numbers, tables, figures, verdicts and the report page.

Nothing here trains (or imports torch).
"""
