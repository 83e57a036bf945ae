#!/bin/bash
# The token that Airflow shows to LakeChime: made once, and kept in a volume, because LakeChime itself keeps only its digest.
set -euo pipefail
file=/var/lib/opal/token
lakechime migrate
if [[ ! -s $file ]]; then
    umask 077
    lakechime token create "airflow-$(date +%s)" --role write > "$file.part"
    mv "$file.part" "$file"
fi
