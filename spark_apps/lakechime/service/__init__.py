"""The service: LakeChime's questions over HTTP, by itself behind tokens of its own or within another program behind that one's users."""
