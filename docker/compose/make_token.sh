#!/bin/bash
# Create the token that Airflow sends to LakeChime, once. It stays in a volume, because LakeChime
# stores only its digest.
set -euo pipefail
file=/var/lib/opal/token
lakechime migrate
if [[ ! -s $file ]]; then
    umask 077
    lakechime token create "airflow-$(date +%s)" --role write > "$file.part"
    mv "$file.part" "$file"
fi
