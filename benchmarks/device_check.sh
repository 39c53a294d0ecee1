#!/usr/bin/env bash
# Everything that needs a device, in one run with a table at its end:
#
#   benchmarks/device_check.sh [--device cuda|cpu] [--short] [--limit SECONDS] [--only PART]...
#
# A part that fails or hangs does not stop the others; all of it ends within --limit (570 s by default). What is worth
# keeping lies in $OUT afterwards (device-check by default): table.txt, results.json, log.txt, store.sqlite.
#
# It uses the Python that is there (PYTHON, python3 by default) where that has what stepgauge needs. Where something is
# missing it makes an environment beside $OUT that sees the Python's own packages, and installs the rest with pip, from
# WHEELS alone where that names a folder.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
export OUT=${OUT:-$PWD/device-check}
mkdir -p "$OUT"
device=cuda
previous=
for argument in "$@"; do
    [ "$previous" = --device ] && device=$argument
    previous=$argument
done

needed() {
    echo numpy sqlalchemy alembic typer rich yaml scipy sklearn torch pynvml
    [ "$device" = cuda ] && echo cupy
    return 0
}

missing() {
    "$python" - $(needed) <<'PYTHON'
import sys
from importlib.util import find_spec
print(*(name for name in sys.argv[1:] if find_spec(name) is None))
PYTHON
}

install() {
    local environment=$OUT-environment
    "$python" -m venv --system-site-packages "$environment"
    # A python that is in an environment itself lends that environment's packages, not only its system's.
    "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lent.pth"
    python=$environment/bin/python
    local from=()
    [ -n "${WHEELS:-}" ] && from=(--no-index --find-links "$WHEELS")
    "$python" -m pip install --quiet --disable-pip-version-check "${from[@]}" -e '.[measure]' ||
        "$python" -m pip install --quiet --disable-pip-version-check "${from[@]}" $1
    if [ "$device" = cuda ] && ! "$python" -c 'import cupy' 2>/dev/null; then
        local major
        major=$("$python" -c 'import torch; print((torch.version.cuda or "13").partition(".")[0])')
        "$python" -m pip install --quiet --disable-pip-version-check "${from[@]}" "cupy-cuda${major}x" ||
            echo "CuPy could not be installed: the raw kernels will be left out" >&2
    fi
}

lacking=$(missing)
if [ -n "$lacking" ]; then
    echo "not installed: $lacking" >&2
    packages=$(echo " $lacking " | sed 's/ yaml / pyyaml /; s/ sklearn / scikit-learn /; s/ pynvml / nvidia-ml-py /; s/ cupy / /')
    install "$packages" || echo "pip failed; going on with what is there" >&2
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1
exec "$python" benchmarks/device_check.py "$@"
