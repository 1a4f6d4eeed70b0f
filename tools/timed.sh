#!/bin/sh
# Runs a command and notes how long it took: timed.sh TIMES NAME COMMAND... appends "seconds NAME" to the file
# TIMES; `timed.sh TIMES` alone prints what it holds, with the sum.
times=$1
if [ $# -eq 1 ]; then
  awk '{ seconds = $1; sum += $1; $1 = ""; printf "%8.1f s %s\n", seconds, $0 } END { printf "%8.1f s  in all\n", sum }' "$times"
  exit
fi
name=$2
shift 2
mkdir -p "$(dirname "$times")"
echo "==== $name"
start=$(date +%s.%N)
"$@"
status=$?
echo "$start $(date +%s.%N) $name" | awk '{ printf "%.1f", $2 - $1; $1 = $2 = ""; print }' >>"$times"
[ "$status" -eq 0 ] || echo "==== $name: failed with exit status $status" >&2
exit "$status"
