"""The client of a LakeChime service: a store whose requests go over HTTP."""
