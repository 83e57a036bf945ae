"""Changes of a table's columns and constraints (FORMAT, section 5).

Each change is a frozen value with a form in JSON, and a pure function from spec to spec.
"""
