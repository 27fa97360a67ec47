#!/bin/sh
# A hook_gpu_fault: resets a GPU and returns it to the jobs, or drains the Slurm node of what no reset mends.
#
#   [supervisord]
#   hook_gpu_fault = /etc/stepkeeper/gpu-fault.sh
#   hook_timeout = 2 minutes
#
# docs/gpus.md has the JSON that it gets. It was not run on a GPU. It needs root, and `supervisorctl` beside supervisord
# (set SUPERVISORCTL to its path, with -c FILE if it finds no configuration by itself).
set -eu

SUPERVISORCTL=${SUPERVISORCTL:-/opt/stepkeeper/current/bin/supervisorctl}
NVIDIA_SMI=${NVIDIA_SMI:-nvidia-smi}
SCONTROL=${SCONTROL:-scontrol}

event=$(cat)
value() { printf '%s' "$event" | python3 -I -c 'import json, sys; print(json.load(sys.stdin).get(sys.argv[1]) or "")' "$1"; }

gpu=$(value gpu)
action=$(value action)
fault=$(value fault)
case $gpu in
    "") ;;
    GPU-*[!0-9a-fA-F-]*) echo "not the id of a GPU: $gpu" >&2; exit 1 ;;
    GPU-?*) ;;
    *) echo "not the id of a GPU: $gpu" >&2; exit 1 ;;
esac

reset_gpu() { # fails if the reset does: `set -e` does not hold in here, as the caller asks whether it succeeded
    # Persistence mode counts as a client, and a GPU with a client can't be reset ("In use by another client").
    persistence=$("$NVIDIA_SMI" -i "$gpu" --query-gpu=persistence_mode --format=csv,noheader || echo Disabled)
    "$NVIDIA_SMI" -i "$gpu" -pm 0 || return 1
    status=0
    "$NVIDIA_SMI" -i "$gpu" --gpu-reset || status=1
    if [ "$persistence" = Enabled ]; then
        "$NVIDIA_SMI" -i "$gpu" -pm 1 || status=1
    fi
    if [ "$status" = 0 ]; then
        "$SUPERVISORCTL" gpus --return "$gpu" || true # NVML may have said before that it is in order again
    fi
    return "$status"
}

drain() {
    if command -v "$SCONTROL" >/dev/null; then
        "$SCONTROL" update "NodeName=$(hostname -s)" State=DRAIN "Reason=stepkeeper: $fault ${gpu:-all GPUs}, $action"
    else
        echo "$fault: ${gpu:-the host} needs: $action" >&2
        exit 1
    fi
}

if [ "$action" = reset ] && [ -n "$gpu" ] && [ "$(value in_use)" != True ] && reset_gpu; then
    exit 0
fi
drain
