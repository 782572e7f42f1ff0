# What the scripts of this folder share.
. tests/checkpoint/servers.sh
out=$(mktemp -d "${TMPDIR:-/tmp}/everstep-checkpoint.XXXXXX")
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$out"
}
trap finish EXIT
fail() {
    echo "error: $*" >&2
    exit 1
}

# example NAME: builds an example of the crate, and prints the path of the program.
example() {
    cargo build --quiet --workspace --example "$1" >&2 || fail "the example $1 cannot be built"
    echo "${CARGO_TARGET_DIR:-target}/debug/examples/$1"
}

# until_true SECONDS WHAT COMMAND…: the command succeeds in time.
until_true() {
    local seconds=$1 what=$2
    shift 2
    for _ in $(seq $((seconds * 10))); do
        if "$@" > /dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "not in $seconds s: $what"
}
