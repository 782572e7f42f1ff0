#!/usr/bin/env bash
# What every store must do, on servers of object stores: S3 by moto, Azure by azurite, and Google Cloud Storage by a fake
# of our own (tests/checkpoint/gcs.py). The real services are not reached, and the real Google Cloud Storage is untested.
# Also: a service that ignores conditions, missing credentials, a bucket that is not there, a service that is away.
# usage: stores.sh [s3] [azure] [google]; default: all that can be had
# s3 needs python3 with venv and PyPI, or PYTHON: a Python with moto[server]. azure needs npm, or AZURITE: the path of
# azurite-blob.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/checkpoint/common.sh
suite=$(example store_suite)
wanted=${*:-s3 azure google}
unset ${!AWS_*} ${!AZURE_*} ${!GOOGLE_*}

# refused WORDS COMMAND…: the command fails in time and says so.
refused() {
    local words=$1
    shift
    if timeout 100 "$@" > "$out/told" 2>&1; then fail "not refused: $*"; fi
    grep -q -- "$words" "$out/told" || fail "no \"$words\" in: $(cat "$out/told")"
}

s3() {
    local at bucket
    at=http://127.0.0.1:$(port)
    s3_server "${at##*:}" > "$out/moto.log" 2>&1 &
    pids+=($!)
    until_true 180 "moto answers" curl -fs "$at/moto-api/"
    export AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_REGION=us-east-1 AWS_ENDPOINT_URL=$at
    refused "set AWS_ALLOW_HTTP=true" "$suite" s3://bucket/a
    export AWS_ALLOW_HTTP=true
    refused "no such bucket or container. Create it" "$suite" --probe s3://bucket/a
    curl -fs -X PUT "$at/bucket" > /dev/null
    "$suite" s3://bucket/runs/r1
    "$suite" s3://bucket
    # Nothing that was given up or deleted is left.
    [ -z "$(curl -fs "$at/bucket?uploads" | grep -o '<UploadId>')" ] || fail "an upload is left"
    # A create whose first answer is lost, and a service that ignores conditions.
    for mode in lose-first ignore-conditions; do
        bucket=http://127.0.0.1:$(port)
        python3 tests/checkpoint/proxy.py "$mode" "${bucket##*:}" "$at" > "$out/proxy.log" 2>&1 &
        pids+=($!)
        until_true 20 "the proxy answers" curl -s "$bucket/"
        case $mode in
            lose-first) AWS_ENDPOINT_URL=$bucket "$suite" --probe s3://bucket/lost ;;
            *) AWS_ENDPOINT_URL=$bucket refused "If-None-Match" "$suite" --probe s3://bucket/ignored ;;
        esac
    done
    AWS_ENDPOINT_URL=http://127.0.0.1:1 refused "s3://bucket/away" "$suite" --probe s3://bucket/away
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
    AWS_METADATA_ENDPOINT=http://127.0.0.1:1 refused "set AWS_ACCESS_KEY_ID" "$suite" --probe s3://bucket/a
}

azure() {
    local azurite=${AZURITE:-} at
    if [ -z "$azurite" ]; then
        command -v npm > /dev/null || fail "npm is needed (apt-get install npm)"
        (cd "$out" && npm install --silent --no-audit --no-fund azurite > npm.log 2>&1) || fail "npm cannot install azurite"
        azurite=$out/node_modules/.bin/azurite-blob
    fi
    at=http://127.0.0.1:$(port)
    (cd "$out" && exec "$azurite" --inMemoryPersistence --skipApiVersionCheck --silent --blobHost 127.0.0.1 \
        --blobPort "${at##*:}" > azurite.log 2>&1) &
    pids+=($!)
    until_true 60 "azurite answers" curl -s "$at/"
    export AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1
    # The key that azurite has published for everybody.
    AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq
    export AZURE_STORAGE_ACCOUNT_KEY="$AZURE_STORAGE_ACCOUNT_KEY/K1SZFPTOtr/KBHBeksoGMGw=="
    export AZURE_STORAGE_ENDPOINT=$at/devstoreaccount1
    refused "set AZURE_ALLOW_HTTP=true" "$suite" az://box/a
    export AZURE_ALLOW_HTTP=true
    refused "no such bucket or container. Create it" "$suite" --probe az://box/a
    python3 tests/checkpoint/azure_container.py "$AZURE_STORAGE_ENDPOINT" box
    "$suite" az://box/runs/r1
    "$suite" az://box
    unset AZURE_STORAGE_ACCOUNT_NAME
    refused "set AZURE_STORAGE_ACCOUNT_NAME" "$suite" --probe az://box/a
}

google() {
    local at
    at=http://127.0.0.1:$(port)
    python3 tests/checkpoint/gcs.py "${at##*:}" bucket > "$out/gcs.log" 2>&1 &
    pids+=($!)
    until_true 20 "the fake answers" curl -s "$at/"
    export GOOGLE_BASE_URL=$at
    export GOOGLE_SERVICE_ACCOUNT_KEY='{"private_key":"","private_key_id":"","client_email":"","disable_oauth":true}'
    refused "set GOOGLE_ALLOW_HTTP=true" "$suite" gs://bucket/a
    export GOOGLE_ALLOW_HTTP=true
    refused "no such bucket or container. Create it" "$suite" --probe gs://other/a
    "$suite" gs://bucket/runs/r1
    "$suite" gs://bucket
}

for service in $wanted; do
    echo "$service:"
    "$service"
done
