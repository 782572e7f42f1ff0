# Pythons and servers for the scripts of this folder. What they need goes into the folder `out`, and an error to `fail`:
# the script that sources this has both.
# shellcheck shell=bash

# python_with PACKAGES…: a Python that has them, in a virtual environment of its own. Set PYTHON to a Python that has them
# already, and nothing is installed.
python_with() {
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    python3 -m venv "$out/venv" >&2 || fail "python3 with venv is needed (apt-get install python3-venv)"
    "$out/venv/bin/pip" install --quiet "$@" >&2 || fail "pip cannot install $*"
    echo "$out/venv/bin/python"
}

# A port that is free.
port() { python3 tests/checkpoint/free_port.py; }

# s3_server PORT: becomes a server of S3.
s3_server() {
    local python
    python=$(python_with 'moto[server]')
    exec "$python" tests/checkpoint/s3.py "$1"
}
