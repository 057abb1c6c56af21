# Virtual environments for the scripts: made once, refilled only when what they are made from changed. Sourced.

# find_python: prints the first Python 3.11 or newer; $PYTHON wins.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11; do
    if [[ -n $candidate ]] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "no Python 3.11 or newer found: install python3.11, or name one with PYTHON=/path/to/python3" >&2
  return 1
}

# fill_environment VENV FINGERPRINT PIP_ARGUMENTS...: makes VENV where it is missing and runs `pip install` in it,
# unless that was already done for the same fingerprint. The stamp is written last, so a cut run starts over.
fill_environment() {
  local venv=$1 fingerprint=$2 python stamp
  shift 2
  stamp=$venv/.filled
  if [[ ! -x $venv/bin/python ]]; then
    python=$(find_python) || return
    if ! "$python" -m venv "$venv"; then
      echo "cannot make a virtual environment in $venv: install your system's python3-venv package" >&2
      return 1
    fi
  fi
  if [[ ! -f $stamp || $(<"$stamp") != "$fingerprint" ]]; then
    rm -f "$stamp"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return
    echo "$fingerprint" >"$stamp"
  fi
}
