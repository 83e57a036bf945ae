"""Tables on local and mounted file systems: files appear whole or not at all, with hard links or without."""
