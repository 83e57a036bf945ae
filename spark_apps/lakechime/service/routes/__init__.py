"""The paths of the service, by what they are about. Each module makes its routes for an `Access`, whose rights they depend on."""
