"""Tables on local and mounted file systems.

Files appear whole or not at all, with hard links or without.
"""
