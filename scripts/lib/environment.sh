# Virtual environments for the scripts: made once, refilled only when what they are made from changed. Sourced.

_locks=$(cd "$(dirname "${BASH_SOURCE[0]}")/../locks" && pwd)

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

# is_filled VENV STAMP FINGERPRINT: whether `fill_environment` was done for the same.
is_filled() {
  [[ -f $1/.$2 && $(<"$1/.$2") == "$3" ]]
}

# fill_environment VENV STAMP FINGERPRINT PIP_ARGUMENTS...: makes VENV where it is missing and runs `pip install` in it,
# unless that was done for the same fingerprint. The stamp is written last, so a cut run starts over.
fill_environment() {
  local venv=$1 stamp=$2 fingerprint=$3 python
  shift 3
  if [[ ! -x $venv/bin/pip ]]; then
    python=$(find_python) || return
    if ! "$python" -m venv "$venv"; then
      echo "cannot make a virtual environment in $venv: install your system's python3-venv package" >&2
      return 1
    fi
  fi
  if ! is_filled "$venv" "$stamp" "$fingerprint"; then
    rm -f "$venv/.$stamp"
    echo "installing into $venv: $stamp" >&2
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || return
    echo "$fingerprint" >"$venv/.$stamp"
  fi
}

# fill_locked VENV LOCK [PIP_ARGUMENTS...]: fills VENV from scripts/locks/LOCK.txt; a file with another hash is refused.
fill_locked() {
  local venv=$1 lock=$2
  shift 2
  fill_environment "$venv" "$lock" "$(cksum <"$_locks/$lock.txt")" --require-hashes --requirement "$_locks/$lock.txt" "$@"
}

# fill_project VENV FINGERPRINT PROJECT...: installs the project into VENV, which holds all that it needs. Neither it nor
# its build fetches anything.
fill_project() {
  local venv=$1 fingerprint=$2
  shift 2
  fill_environment "$venv" project "$fingerprint" --no-deps --no-build-isolation "$@"
}

# development_environment VENV ROOT: the checkout at ROOT, editable, with everything that its tests and benches need.
development_environment() {
  fill_locked "$1" dev || return
  fill_project "$1" "$(cksum <"$2/pyproject.toml")" --editable "$2"
}

# compile_kernels VENV: has numba compile the codec's kernels into its cache, once, instead of in every daemon at once.
compile_kernels() {
  "$1/bin/python" -c 'from patchswarm.protocol.codec.chunk import warm_up; warm_up()'
}

# Torch's side is pinned but not hashed: its builds come from other places for each platform.
#
# engine_environment: prints the environment with torch and transformers, .engine/venv or $PATCHSWARM_ENGINE_VENV, made
# where it is missing. From the repository's root.
engine_environment() {
  local venv=${PATCHSWARM_ENGINE_VENV:-.engine/venv}
  fill_environment "$venv" engine "$(cat pyproject.toml scripts/constraints.txt | cksum)" \
    --constraint scripts/constraints.txt --editable '.[torch]' transformers openai \
    pytest pytest-asyncio pytest-timeout hypothesis >&2 || return
  compile_kernels "$venv" >&2 || return
  echo "$venv"
}
