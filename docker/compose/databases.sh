#!/bin/bash
# PostgreSQL's image runs this script at its first start. It creates a database and a role for
# Airflow, and the same for LakeChime. Neither role can see the other's database.
set -euo pipefail
for name in airflow lakechime; do
    password=$(< "/run/secrets/${name}_database_password")
    psql --quiet --set ON_ERROR_STOP=1 --username postgres --set role="$name" --set password="$password" <<'SQL'
CREATE ROLE :"role" LOGIN PASSWORD :'password';
CREATE DATABASE :"role" OWNER :"role";
REVOKE ALL ON DATABASE :"role" FROM PUBLIC;
SQL
done
