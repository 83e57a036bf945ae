"""The service: LakeChime over HTTP.

It runs on its own behind tokens, or within another program behind the users of that one. `app` is
the service, `server` its process. `access` has the rights, `models` the bodies of requests and
answers, `limits` their sizes.
"""
