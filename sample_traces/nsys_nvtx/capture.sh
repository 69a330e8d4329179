#!/bin/bash
# Records train.py with Nsight Systems: capture.sh NSYS_FOLDER PYTHON PACKAGES OUT_FOLDER
#
#   NSYS_FOLDER  a folder that holds host-linux-x64 and target-linux-x64 of Nsight Systems
#   PYTHON       a Python interpreter under /usr, such as /usr/bin/python3
#   PACKAGES     a folder with numpy and nvtx 0.2.11 for it
#   OUT_FOLDER   where train.nsys-rep and train.sqlite.gz go
#
# Nsight Systems writes the whole environment, all processes, the host name and absolute paths into a report. So that
# nothing of the recording machine gets in, this runs in namespaces of its own (needs root): an empty environment, no
# other process, the host name "tracehost", and all files under /srv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$4"

# Outside: mounts only, which need the caller's paths. Inside: a fresh process namespace that has never seen them.
unshare --mount --uts bash -euo pipefail -c '
    hostname tracehost
    out=$(realpath "$4")
    mount -t tmpfs tmpfs /srv
    mkdir /srv/nsys /srv/packages /srv/app /srv/libraries /srv/out
    mount --bind "$1" /srv/nsys
    mount --bind "$3" /srv/packages
    mount --bind "$out" /srv/out
    if [ -n "${LD_LIBRARY_PATH:-}" ]; then mount --bind "$LD_LIBRARY_PATH" /srv/libraries; fi
    cp "$5/train.py" "$5/record.sh" /srv/app/
    cd /srv/app
    exec env -i PATH=/usr/bin:/bin HOME=/nonexistent LANG=C.UTF-8 LD_LIBRARY_PATH=/srv/libraries \
        PYTHONPATH=/srv/packages PYTHONDONTWRITEBYTECODE=1 OPENBLAS_NUM_THREADS=1 \
        unshare --pid --fork --mount-proc bash record.sh "$2"
' capture "$1" "$2" "$3" "$4" "$here"
