# Sourced by quickstart.sh and test.sh: what both need before they can start.

build_packages=(
  g++ cmake ninja-build pkg-config
  libfuse3-dev libgit2-dev libboost-dev libboost-program-options-dev libexpected-dev libmagic-dev
  libspdlog-dev libsqlite3-dev libssl-dev libsystemd-dev nlohmann-json3-dev zlib1g-dev libgtest-dev libgmock-dev
)

fail() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

need_root() {
  [ "$(id -u)" = 0 ] || fail "run me as root: mounting and installing packages need it"
}

# Installs those of the named Debian packages that are missing; does not touch apt when none is.
install_packages() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq </dev/null || fail "apt-get update failed: is there a network?"
  apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
    fail "apt-get could not install: ${missing[*]}"
}

# Configures and builds a preset; says what it does only where that fails or takes long.
build_preset() { # preset target...
  local preset=$1
  shift
  cmake --preset "$preset" >"/tmp/okcvm-configure.$$" 2>&1 || {
    cat "/tmp/okcvm-configure.$$"
    rm -f "/tmp/okcvm-configure.$$"
    fail "cmake --preset $preset failed"
  }
  rm -f "/tmp/okcvm-configure.$$"
  cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"} || fail "the build of $preset failed"
}

# The FUSE mounts of this machine, one mount point a line.
fuse_mounts() {
  awk '$3 ~ /^fuse\./ { print $2 }' /proc/mounts
}
