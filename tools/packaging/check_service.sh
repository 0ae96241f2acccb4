#!/usr/bin/env bash
# Installs the Debian package under a systemd of its own (in a container, with systemd-nspawn) and sees the service through
# what happens to it: kills, a crash, a hang, reload, restart, an upgrade, socket activation, stop, a boot. As root;
# leaves nothing behind.
#   tools/packaging/check_service.sh [MIRROR]     the default mirror is this host's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tools/setup.sh
need_root
. tools/packaging/clean_root.sh

init=''
inside() { timeout -s KILL 90 nsenter -t "$init" -a -r -w "${clean[@]}" "$@"; }
property() { inside systemctl show -P "$1" okcvmd.service; }
mount_number() { inside awk -v point="$mount" '$5 == point { print $1 }' /proc/self/mountinfo; }
mounts() { inside grep -c ' fuse.okcvm ' /proc/mounts || true; }

boot() {
  # What a container usually may not do, but okcvmd's own unit allows.
  systemd-nspawn --quiet --directory "$root" --register=no --keep-unit --boot --bind=/dev/fuse \
    --capability=all --system-call-filter='@mount open_by_handle_at name_to_handle_at' \
    >"$work/console.log" 2>&1 </dev/null &
  local container=$!
  running=("$container")
  for _ in $(seq 300); do
    init=$(awk '{ print $1 }' "/proc/$container/task/$container/children" 2>/dev/null) || init=''
    sleep 0.1
    [ -n "$init" ] || continue
    running=("$container" "$init")  # which would go on without the container's own process
    case $(inside systemctl is-system-running 2>/dev/null) in running | degraded) return ;; esac
  done
  tail "$work/console.log"
  fail "systemd does not come up in the container"
}
power_off() {
  inside systemctl poweroff >/dev/null 2>&1 || true
  wait "${running[0]}" || true
  running=()
}

serves() { # by another process than $1
  for _ in $(seq 400); do
    [ "$(property MainPID)" != "$1" ] && inside okcvm status >/dev/null 2>&1 && return
    sleep 0.1
  done
  inside journalctl -b -u okcvmd --no-pager | tail -n 20
  fail "no other okcvmd serves"
}

goes_on() { # what, command...: the session lives through it, and who works in it
  local what=$1 before number
  shift
  step "$what"
  before=$(property MainPID) number=$(mount_number)
  "$@" || fail "it failed"
  inside sh -c "echo '$what' >>$mount/outputs/log" || fail "a write during it failed"
  serves "$before"
  [ "$(mount_number)" = "$number" ] || fail "the session was mounted anew"
  [ "$(inside tail -n 1 "$mount/outputs/log")" = "$what" ] || fail "what was written is not there"
  worker_lives || fail "the program that had a file open in the session failed"
}
signal_service() { inside systemctl kill --kill-who=main --signal="$1" okcvmd.service; }
worker_lives() { inside sh -c 'read -r before </root/beats; for i in $(seq 200); do
  read -r now </root/beats; [ "$now" != "$before" ] && exit 0; sleep 0.1; done; exit 1'; }

step "building the packages: this version and the next"
install_packages systemd-container
build_packages
step "a clean Debian 12 root with systemd"
make_root systemd systemd-sysv dbus

step "install: enabled, started, ready"
boot
install_inside "$package"
[ "$(property ActiveState)" = active ] || fail "the service was not started"
inside systemctl is-enabled --quiet okcvmd.service okcvmd.socket || fail "the service was not enabled"
inside systemctl is-active --quiet okcvmd.socket || fail "the socket is not served"
mount=$(inside okcvm create --id live)
inside okcvm info live | grep -q '^survives okcvmd  *yes' || fail "systemd does not keep the mount"
# A program with its working directory and an open file in the session, which it writes and reads all the time.
inside sh -c "cd $mount/outputs && exec setsid sh -c 'exec 7>>open; n=0; while echo beat >&7 && [ -s open ]; do
  n=\$((n+1)); echo \$n >/root/beats; sleep 0.05; done' >/dev/null 2>&1 </dev/null &"

goes_on "kill -9" signal_service KILL
goes_on "a crash" signal_service SEGV
goes_on "reload" inside systemctl reload okcvmd.service
goes_on "restart" inside systemctl restart okcvmd.service
goes_on "an upgrade" install_inside "$upgrade"
goes_on "a hang, which the watchdog ends" signal_service STOP

step "stop: nothing stays mounted; a request starts it again, and the session is back"
inside systemctl stop okcvmd.service 2>/dev/null
[ "$(mounts)" = 0 ] || fail "a stopped service left a mount"
inside okcvm list >/dev/null
[ "$(property ActiveState)" = active ] && [ "$(mounts)" = 1 ] || fail "the socket did not bring the session back"

step "a boot: the session is back"
power_off
boot
inside systemctl is-active --quiet okcvmd.service || fail "the service is not started at boot"
[ "$(inside head -n 1 "$mount/outputs/log")" = "kill -9" ] || fail "the session's files are not there"

step "remove: nothing stays mounted; installed again, it is enabled and started, and the session is back"
inside apt-get remove -y -qq okcvm-fs >"$work/apt.log" 2>&1 || fail "the package could not be removed"
[ "$(mounts)" = 0 ] || fail "a removed package left a mount"
install_inside "$upgrade"
[ "$(property ActiveState)" = active ] || fail "the service was not started again"
inside systemctl is-enabled --quiet okcvmd.service okcvmd.socket || fail "the service was not enabled again"
[ "$(inside head -n 1 "$mount/outputs/log")" = "kill -9" ] || fail "the session's files are not there"

step "an upgrade of a service that the administrator stopped and disabled leaves it so"
inside systemctl disable --quiet okcvmd.service okcvmd.socket
inside systemctl stop okcvmd.socket okcvmd.service
inside apt-get install -y -qq --reinstall "/root/$(basename "$upgrade")" >"$work/apt.log" 2>&1
[ "$(property ActiveState)" = inactive ] || fail "the upgrade started it"
! inside systemctl is-enabled --quiet okcvmd.service || fail "the upgrade enabled it"

step "remove and purge"
inside apt-get purge -y -qq okcvm-fs >"$work/apt.log" 2>&1 || fail "the package could not be purged"
must_be_gone /var/lib/okcvm /etc/okcvm
[ "$(mounts)" = 0 ] || fail "a mount is left"
power_off
