#!/bin/sh
# Installs this checkout for a node of a cluster: infra/install_node.sh FOLDER [EXTRAS [STEP]]
# makes a virtual environment in FOLDER. EXTRAS are `cluster` or `cluster,gpu`. PYTHON names the interpreter.
# Every file that is installed has the version and the hash of constraints.txt, uv itself too.
# With DEVICE=cpu, torch and faiss have no CUDA: torch is then PyTorch's build for CPUs of the same version, whose hash
# constraints.txt does not have.
# STEP is `dependencies` or `package`; both by default. An image installs the dependencies first, because they change rarely.
set -eu

folder=$1
extras=${2:-cluster}
step=${3:-all}
cd "$(dirname "$0")/.."
uv=$folder/bin/uv

install() { "$uv" pip install --quiet --compile-bytecode --python "$folder/bin/python" "$@"; }

if [ "$step" != package ]; then
    "${PYTHON:-python3}" -m venv "$folder"
    sed -n '/^uv==/,/[^\\]$/p' constraints.txt > "$folder/uv.txt"
    "$folder/bin/python" -m pip install --quiet --require-hashes --no-deps -r "$folder/uv.txt"
    cp constraints.txt "$folder/constraints.txt"
    set -- -r pyproject.toml
    for extra in $(echo "$extras" | tr , ' '); do
        set -- "$@" --extra "$extra"
    done
    if [ "${DEVICE:-}" = cpu ]; then
        # The versions stay; only the hashes of torch's builds with CUDA and the condition of faiss-cpu go.
        sed -e '/^torch\(vision\)\{0,1\}==/,/[^\\]$/ {/^ /d; s/ *\\$//;}' -e 's/^\(faiss-cpu==[^ ]*\) ;[^\\]*/\1 /' \
            constraints.txt > "$folder/constraints.txt"
        echo faiss-gpu > "$folder/excludes.txt"
        set -- "$@" faiss-cpu --excludes "$folder/excludes.txt" --torch-backend cpu
    fi
    # With bytecode, because nodes may run under a user who cannot write it.
    install -c "$folder/constraints.txt" -b constraints.txt "$@"
fi
if [ "$step" != dependencies ]; then
    install --no-deps -b constraints.txt .
fi
