#!/bin/bash
# Run by PostgreSQL's image at its first start: a database and a role each for Airflow and LakeChime. Neither may see the other's.
set -euo pipefail
for name in airflow lakechime; do
    password=$(< "/run/secrets/${name}_database_password")
    psql --quiet --set ON_ERROR_STOP=1 --username postgres --set role="$name" --set password="$password" <<'SQL'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
CREATE DATABASE :"role" OWNER :"role";
REVOKE ALL ON DATABASE :"role" FROM PUBLIC;
SQL
done
