#!/bin/bash
# What capture.sh runs in its clean room: record.sh PYTHON
set -euo pipefail
nsys=/srv/nsys/target-linux-x64/nsys
$nsys profile --trace=nvtx,osrt --sample=none --cpuctxsw=none --backtrace=none --force-overwrite=true \
    -o /srv/out/train "$1" train.py
$nsys export --type=sqlite --lazy=false --force-overwrite=true -o /srv/out/train.sqlite /srv/out/train.nsys-rep > /dev/null
"$1" -c 'import sqlite3; sqlite3.connect("/srv/out/train.sqlite").execute("vacuum")'
gzip -9nf /srv/out/train.sqlite
