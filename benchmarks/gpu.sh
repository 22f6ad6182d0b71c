#!/usr/bin/env bash
# All that needs a CUDA GPU, in one command and without a network: the CUDA tests, the demo, the comparison.
#
#   benchmarks/gpu.sh                        check, then all seven
#   benchmarks/gpu.sh tests bench            only these, in this order
#   PYTHON=/opt/py/bin/python OUT=out/gpu ARMS=inductor,memgraph ROUNDS=3 benchmarks/gpu.sh bench
#
# Nothing is installed. Everything runs in a folder under $OUT with links to the tests and the benchmarks; where memgraph
# is not installed, a copy that has the shape of an installed package lies there too.
# shellcheck disable=SC2329  # the stages are called by name
set -euo pipefail
python=$(command -v "${PYTHON:-python3}") || { echo "no ${PYTHON:-python3}" >&2; exit 1; }
# Absolute, because it is called from several folders; the link itself, because a venv's python is one.
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
out=$(realpath -m "${OUT:-out/gpu}")
rounds=${ROUNDS:-5}
jobs=${JOBS:-$((($(nproc) + 1) / 2))}
# About 800 million parameters: the activations of 8,192 tokens outweigh them. Not every arm of run.py, because each
# compiles for the best part of a minute; all of them are on the GPU at a time.
arms=${ARMS:-eager,inductor,activation_memory_budget,memgraph}
model=(--layers 12 --hidden 2048 --sequence 4096 --vocabulary 32768 --batch 2 --dtype bfloat16)

check() {
    "$python" - <<'PY'
import importlib.util
import sys

need = ["torch", "triton", "numpy", "scipy", "networkx", "pydantic", "typer", "rich", "transformers"]
extras = {"pytest": "the tests", "hypothesis": "the property tests", "matplotlib": "the pictures"}
missing = [name for name in need if importlib.util.find_spec(name) is None]
for name, what in extras.items():
    if importlib.util.find_spec(name) is None:
        print(f"not here: {name}; without it, no run of {what}")
if missing:
    sys.exit(f"missing: {', '.join(missing)} (in {sys.executable}); memgraph does not run without")
import torch
import transformers

print(f"torch {torch.__version__}, transformers {transformers.__version__}, Python {sys.version.split()[0]}")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
    sys.exit("torch 2.11 or newer is needed")
if not torch.cuda.is_available():
    sys.exit("torch sees no CUDA device")
print(torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory // 2**20, "MiB")
PY
}

# Asked from elsewhere, because here the folder memgraph would be found, and would lack memgraph.passes.
installed() {
    (cd / && "$python" -c 'import memgraph.backend, memgraph.passes') 2> /dev/null
}

# `python -m` and pytest put the folder that they run in first. In the root that is a memgraph without memgraph.passes.
make_tree() {
    rm -rf "$tree"
    mkdir -p "$tree"
    ln -s "$root/benchmarks" "$root/tests" "$root/examples" "$root/pyproject.toml" "$tree"
}

add_memgraph() {
    mkdir "$tree/torch_memgraph-0.dist-info"
    cp -r memgraph "$tree/memgraph"
    cp -r passes "$tree/memgraph/passes"
    printf 'Metadata-Version: 2.1\nName: torch-memgraph\nVersion: 0\n' > "$tree/torch_memgraph-0.dist-info/METADATA"
    printf '[torch_dynamo_backends]\nmemgraph = memgraph.backend:memgraph\n' \
        > "$tree/torch_memgraph-0.dist-info/entry_points.txt"
}

stage_tests() {
    local workers=()
    "$python" -c 'import xdist' 2> /dev/null && workers=(-n "$jobs")
    TELL_FAILURES=1 "$python" -m pytest -v -m cuda -p no:cacheprovider --durations=10 "${workers[@]}" tests
}

stage_cases() {
    # The kinds of training that the simulated device holds every prediction against.
    "$python" -m benchmarks.simulated --card here --jobs "$jobs" --name cuda-cases
}

stage_demo() {
    "$python" examples/train_llama.py --out "$root/out"
}

stage_bench() {
    "$python" -m benchmarks.run --device cuda "${model[@]}" --arms "$arms" --rounds "$rounds" \
        --budgets 0.8,0.6,0.4 --activation-budgets 0.5,0.25
}

stage_offload() {
    # Trained on one scratch folder: TMPDIR should lie on an NVMe disk.
    "$python" -m memgraph.cli.app calibrate --scratch "${TMPDIR:-/tmp}"
    "$python" -m benchmarks.offload --device cuda "${model[@]}" --budget 0.4 --rounds "$rounds" --name cuda-offload
}

stage_gpudirect() {
    # The disk through page-locked memory and past it: raw bandwidth, then whole steps, where the GPU computes meanwhile
    # and the interpreter's lock, which torch holds during a call, is felt. Where GPUDirect is not there, why.
    local folder=${TMPDIR:-/tmp} arms="inductor,memgraph staged"
    "$python" -m memgraph.cli.app calibrate --scratch "$folder"
    "$python" -m memgraph.cli.app doctor --scratch "$folder"
    "$python" -m benchmarks.offload_bandwidth --device cuda --folder "$folder" --name cuda-offload-bandwidth
    if "$python" - "$folder" <<'PY'
import sys

from memgraph import runtime

sys.exit(runtime.gpudirect_refusal(sys.argv[1], "cuda"))  # a text is printed, and fails
PY
    then
        arms+=",memgraph direct"
    fi
    "$python" -m benchmarks.offload --device cuda "${model[@]}" --budget 0.4 --rounds "$rounds" --arms "$arms" \
        --scratch "$folder" --name cuda-gpudirect
}

stage_tile() {
    "$python" -m benchmarks.tile --device cuda --stages loss,mlp,planned --rounds "$rounds"
}

stages=("$@")
[[ ${#stages[@]} -gt 0 ]] || stages=(tests cases demo bench offload gpudirect tile)
for stage in "${stages[@]}"; do
    if ! declare -F "stage_$stage" > /dev/null; then
        echo "no stage $stage; there are: tests, cases, demo, bench, offload, gpudirect, tile" >&2
        exit 2
    fi
done

check
tree=$out/tree
make_tree
if ! installed; then
    add_memgraph
    export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}"
    installed || { echo "memgraph cannot be imported:" >&2; (cd / && "$python" -c 'import memgraph.backend'); exit 1; }
fi
cd "$tree"

summary=()
failed=0
for stage in "${stages[@]}"; do
    echo "== $stage"
    start=$SECONDS
    # Not `if stage_...`: the exit status of the pipe's first part is what counts.
    set +e
    "stage_$stage" 2>&1 | tee "$out/$stage.log"
    status=${PIPESTATUS[0]}
    set -e
    [[ $status -eq 0 ]] || failed=1
    summary+=("$(printf '%-6s %-8s %5d s  %s' "$stage" "$([[ $status -eq 0 ]] && echo ok || echo "failed $status")" \
        $((SECONDS - start)) "$(grep -v '^[[:space:]]*$' "$out/$stage.log" | tail -n 1)")")
done

echo "== summary"
printf '%s\n' "${summary[@]}"
# The comparison's table: arm, peak, predicted, relative time.
if [[ -f $out/bench.log ]]; then
    awk -F'|' '/^\|/ { printf "%-32s %10s %10s %14s\n", $2, $3, $4, $5 }' "$out/bench.log"
fi
exit "$failed"
