#!/usr/bin/env bash
# Creates a Python environment with the Kubernetes client of requirements.txt, once per machine and version, and
# prints its interpreter.
#
#   DRYDOCK_CACHE   where environments are kept (default: ${XDG_CACHE_HOME:-~/.cache}/drydock)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DRYDOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drydock}/clients
command -v python3 >/dev/null || { echo "clients: Python 3 is missing; install python3 and python3-venv" >&2; exit 1; }

key=$({ cat "$here/requirements.txt"; python3 --version; } | sha256sum | cut -c1-12)
environment=$cache/python-$key
if [ ! -e "$environment/.complete" ]; then
  mkdir -p "$cache"
  exec 9>"$cache/.python.lock"
  flock 9
  if [ ! -e "$environment/.complete" ]; then
    echo "clients: creating a Python environment in $environment (half a minute)" >&2
    # Environments contain their own path, so it is created in place and marked when complete.
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check --require-virtualenv -r "$here/requirements.txt" >&2
    touch "$environment/.complete"
  fi
fi
echo "$environment/bin/python"
