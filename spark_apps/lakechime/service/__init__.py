"""The service: LakeChime's questions over HTTP, by itself behind tokens of its own or within another program behind that one's users.

`app` is the service, `server` its process. `access` says who may ask, `models` what is taken and answered, `limits` how much of it.
"""
