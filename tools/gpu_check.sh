#!/usr/bin/env bash
# Proves and times the token-code kernels on this machine's GPU, then takes training steps of the 1.7B
# model, with and without CUDA graphs where Transformer Engine is there, and prints a short table last.
# One command, under 8 minutes (2.5 more with Transformer Engine):
#     bash tools/gpu_check.sh [RESULTS.csv]     (writes RESULTS.json, too)
# PYTHON chooses the interpreter (its torch must see the GPU); nothing needs to be installed for the
# kernels, and megatron-core (a folder in PYTHONPATH will do) for the training steps.
# DEVICE=cpu rehearses the script on a machine without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
results=${1:-${TMPDIR:-/tmp}/fixedcode_gpu_$(date +%Y%m%d_%H%M%S).csv}
checks=$(mktemp)
trap 'rm -f "$checks"' EXIT
export PYTHONPATH="$PWD/kernels:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

device=${DEVICE:-cuda}
if [ "$device" = cuda ] &&
    ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "gpu_check: $python has no torch that sees a GPU (set PYTHON to one that does)" >&2
    exit 1
fi
status=0
timeout 150 "$python" -m fixedcode_kernels.check --device "$device" | tee "$checks" || status=1
timeout 90 "$python" -W ignore -m fixedcode_kernels.benchmark --seconds 8 --device "$device" \
    --tokens 2048 8192 32768 --csv "$results" || status=1
training=${results%.csv}.json
steps=$(mktemp)
trap 'rm -f "$checks" "$steps"' EXIT
if "$python" -W ignore -c 'import megatron.core, psutil' 2>/dev/null; then
    timeout "${TRAINING_SECONDS:-240}" "$python" -W ignore -m fixedcode_megatron.planning.gpu_check \
        --device "$device" --json "$training" >"$steps" || status=1
    for precision in bf16 fp8_delayed; do
        timeout "${GRAPH_SECONDS:-75}" "$python" -W ignore -m \
            fixedcode_megatron.planning.graph_check --device "$device" --precision "$precision" \
            >>"$steps" || { echo "  CUDA graphs, $precision: FAILED" >>"$steps"; status=1; }
        [ "$device" = cuda ] || break
    done
else
    echo "  not run: megatron-core or psutil cannot be imported" >"$steps"
fi

echo
echo "== gpu_check, $(date -u +%Y-%m-%d) =="
grep -E '  (ok|FAILED.*)$' "$checks" || echo "no check ran"
"$python" - "$results" <<'PY' || status=1
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
print(f"{rows[0]['device']}, torch {rows[0]['torch']}, triton {rows[0]['triton'] or 'none'}")
print(f"{'':64s}{'dtype':>9s}{'tokens':>8s}{'best us':>9s}{'GB/s':>7s}{'x fill':>8s}{'x op':>8s}")
for row in rows:
    if not row["best_ms"]:
        print(f"{row['what']:64s}{row['dtype']:>9s}{'1':>8s}{float(row['ms']) * 1e3:9.1f}")
        continue
    print(
        f"{row['what']:64s}{row['dtype']:>9s}{row['tokens']:>8s}"
        f"{float(row['best_ms']) * 1e3:9.1f}{float(row['gb_per_s']):7.0f}{row['times_fill']:>8s}"
        f"{row['times_op']:>8s}"
    )
PY
echo "training steps, 1.7B model in BF16 on one GPU:"
cat "$steps"
echo "results: $results $(ls "$training" 2>/dev/null)"
if [ "$status" = 0 ]; then echo "gpu_check: passed"; else echo "gpu_check: FAILED"; fi
exit "$status"
