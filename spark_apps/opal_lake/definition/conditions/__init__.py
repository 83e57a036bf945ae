"""The language of conditions: one text, one tree, one meaning in every engine.

`parse` makes a `tree` of a text, `typing` binds it to a table's columns as typed `nodes`,
`evaluate` answers it over Arrow, `json_form` and `printer` write a tree. `condition` is the face.
docs/reference/conditions.md describes the language and its meaning.
"""
