# Sourced by check_package.sh and check_service.sh: a clean Debian 12 root to try the package in. Sets work, root,
# package and upgrade; all of it goes at the end.

mirror=${1-$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Codename: bookworm' | sort -u | head -n 1)}
work='' root='' running=()  # processes to be ended with everything else

clean_up() {
  local status=$?
  trap - EXIT
  set +e
  [ ${#running[@]} -eq 0 ] || kill -KILL "${running[@]}" 2>/dev/null
  if [ -n "$root" ]; then
    fuse_mounts | grep -F "$root/" | while read -r left; do umount -l "$left"; done
    umount -l "$root/sys" "$root/proc" 2>/dev/null
  fi
  [ -z "$work" ] || rm -rf --one-file-system "$work"
  local name=${0##*/}
  [ "$status" = 0 ] && echo "${name%.sh} done" || echo "${name%.sh} FAILED" >&2
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
step() { printf '== %s\n' "$*"; }
clean=(/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C)
must_be_there() { for path; do [ -e "$root$path" ] || fail "$path is missing"; done; }
must_be_gone() { for path; do [ ! -e "$root$path" ] || fail "$path is still there"; done; }

build_packages() { # this version and the next
  install_packages "${build_packages[@]}" debootstrap dpkg-dev fakeroot file procps
  work=$(mktemp -d /var/tmp/okcvm-package.XXXXXX)
  build_preset release okcvmd okcvm documentation
  local version each
  version=$(sed -n 's/^project(okcvm-fs VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  for each in "$version" "$version+next"; do
    (cd build && cpack -G DEB -B "$work" -D CPACK_PACKAGE_VERSION="$each" >"$work/cpack.log") || {
      cat "$work/cpack.log"
      fail "cpack failed"
    }
  done
  rm -rf "$work/_CPack_Packages"
  package=$(ls "$work/okcvm-fs_${version}"_*.deb) upgrade=$(ls "$work/okcvm-fs_${version}+next"_*.deb)
}

make_root() { # package...
  local more
  more=$(IFS=,; echo "$*")
  root=$work/root
  debootstrap --variant=minbase ${more:+--include="$more"} bookworm "$root" "$mirror" >"$work/debootstrap.log" || {
    tail "$work/debootstrap.log"
    fail "debootstrap failed"
  }
  [ ! -e /etc/apt/apt.conf ] || cp /etc/apt/apt.conf "$root/etc/apt/"
  cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
  cp "$package" "$upgrade" "$root/root/"
}

install_inside() { # package file
  inside apt-get install -y -qq --no-install-recommends "/root/$(basename "$1")" >"$work/apt.log" 2>&1 || {
    tail -n 20 "$work/apt.log"
    fail "${1##*/} could not be installed"
  }
}
