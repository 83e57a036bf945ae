"""The paths of the service. Each module has the routes of one topic.

They depend on the rights of an `Access`.
"""
