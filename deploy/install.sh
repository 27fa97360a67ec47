#!/bin/sh
# Installs stepkeeper as a systemd service, upgrades it, or takes it away; `install.sh --help` says how.
# May be run again at any time: what is in place already is left as it is.
set -eu
umask 022 # the service's user has to read what is installed, and nobody but root may write to it

PREFIX=/opt/stepkeeper
CONFIG=/etc/stepkeeper
UNITS=/etc/systemd/system
COMMANDS="supervisord supervisorctl"
LOCK=/run/stepkeeper-install.lock # only root can write there
MANUAL="man1/supervisord.1 man1/supervisorctl.1 man5/supervisord.conf.5"
HERE=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
SOURCE=$(dirname -- "$HERE")

usage() {
    cat <<'TEXT'
usage: install.sh [--upgrade | --uninstall] [option ...]

Without --upgrade or --uninstall: installs, enables and starts the service. Run it from a checkout.

  --upgrade           a new release beside the old one, then the daemon is replaced; jobs train on
  --uninstall         takes the service and the program away; configuration, history, logs and checkpoints stay
  --wheel FILE        this wheel instead of the checkout
  --sha256 HASH       of that wheel; another one is refused
  --wheelhouse DIR    take all that is needed from this folder, nothing from the network
                      (pip download --require-hashes -d DIR -r CHECKOUT/requirements/install.txt fills it)
  --python FILE       interpreter for the environment, 3.11 or later (default: python3)
  --checkpoints DIR   where jobs keep checkpoints: made, given to the user stepkeeper, waited for at boot;
                      may be given more than once
  --no-start          neither enable nor start the service
  --help              this text
TEXT
}

say() { printf '%s\n' "install.sh: $*"; }

fail() {
    printf '%s\n' "install.sh: $*" >&2
    exit 1
}

# --- what is asked for ---------------------------------------------------------------------------------------------

act=install
wheel=''
sha256=''
wheelhouse=''
python=python3
checkpoints=''
start=yes

while [ $# -gt 0 ]; do
    case $1 in
        --upgrade) act=upgrade ;;
        --uninstall) act=uninstall ;;
        --no-start) start=no ;;
        --help | -h)
            usage
            exit 0
            ;;
        --wheel | --sha256 | --wheelhouse | --python | --checkpoints)
            [ $# -gt 1 ] || fail "$1 needs a value; see install.sh --help"
            case $1 in
                --wheel) wheel=$2 ;;
                --sha256) sha256=$2 ;;
                --wheelhouse) wheelhouse=$2 ;;
                --python) python=$2 ;;
                --checkpoints)
                    case $2 in
                        *[[:space:]]*) fail "cannot use '$2' for checkpoints: systemd wants a path without blanks" ;;
                        /*) checkpoints="$checkpoints $2" ;;
                        *) fail "cannot use '$2' for checkpoints: it must be a full path, from / on" ;;
                    esac
                    ;;
            esac
            shift
            ;;
        *) fail "does not know '$1'; see install.sh --help" ;;
    esac
    shift
done

# --- what must be there --------------------------------------------------------------------------------------------

check_host() {
    [ "$(id -u)" = 0 ] || fail "must run as root: it makes a user and a system service; run it with sudo"
    command -v systemctl >/dev/null || fail "finds no systemd here; without it, run supervisord -n under what you have"
    systemd=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
    [ "${systemd:-0}" -ge 252 ] || fail "needs systemd 252 or later, here is ${systemd:-an unknown one}"
}

# Python is started with -I: root may stand in a folder where others can put a module, such as /tmp.
check_python() {
    command -v "$python" >/dev/null || fail "finds no '$python'; install Python 3.11 or later, or name it: --python FILE"
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "needs Python 3.11 or later, $python is $("$python" -V 2>&1); name another: --python FILE"
    "$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
        fail "needs the module venv, which $python lacks; on Debian and Ubuntu: apt install python3-venv"
}

is_running() { systemctl is-active --quiet stepkeeper.service; }

# --- the program ---------------------------------------------------------------------------------------------------

# A release is an environment of its own; `current` points at the one in use, so that changing it is one rename and the
# files of a running daemon stay as they are. All that it needs, and what builds it, is installed in the versions that were
# tested and only with their hashes: an index, or whoever stands between, can't slip in anything else.
make_release() {
    what=${wheel:-$SOURCE}
    [ -e "$what" ] || fail "finds no $what"
    lock=$SOURCE/requirements/install.txt
    [ -f "$lock" ] || fail "finds no $lock, which has the hashes of what is installed; run it from a whole checkout"
    check_sha256
    release=$PREFIX/releases/$(date -u +%Y%m%dT%H%M%SZ)-$$
    say "making $release from $what"
    mkdir -p "$PREFIX/releases"
    trap 'rm -rf "$release"' EXIT
    trap 'exit 1' HUP INT TERM
    "$python" -I -m venv "$release"
    set -- --quiet --disable-pip-version-check --no-warn-script-location
    if [ -n "$wheelhouse" ]; then
        set -- "$@" --no-index --find-links "$wheelhouse"
    fi
    "$release/bin/python" -I -m pip install "$@" --require-hashes --requirement "$lock" ||
        fail "cannot install what stepkeeper needs; see what pip says above"
    "$release/bin/python" -I -m pip install "$@" --no-deps --no-build-isolation "$what" ||
        fail "cannot install $what; see what pip says above"
    # So that supervisorctl finds the configuration without -c.
    mkdir -p "$release/etc"
    ln -s "$CONFIG/supervisord.conf" "$release/etc/supervisord.conf"
    version=$("$release/bin/supervisord" --version) || fail "the new release does not run; nothing was changed"
}

check_sha256() {
    [ -n "$sha256" ] || return 0
    [ -n "$wheel" ] || fail "needs --wheel with --sha256: a checkout has no hash"
    found=$(sha256sum "$wheel" | cut -d ' ' -f 1)
    [ "$found" = "$sha256" ] || fail "refuses $wheel: its sha256 is $found, not $sha256; get it again"
}

# link_into LINK PLACE: makes LINK lead to PLACE in the current release, unless something else is there
link_into() {
    if [ -e "$1" ] && [ ! -L "$1" ]; then
        say "leaves $1 alone, as it is somebody else's; stepkeeper's is $PREFIX/current/$2"
    else
        mkdir -p "$(dirname "$1")"
        ln -sfn "$PREFIX/current/$2" "$1"
    fi
}

use_release() {
    trap - EXIT HUP INT TERM
    ln -sfn "$release" "$PREFIX/current.new"
    mv -T "$PREFIX/current.new" "$PREFIX/current"
    for each in $COMMANDS; do link_into "/usr/local/bin/$each" "bin/$each"; done
    for each in $MANUAL; do link_into "/usr/local/share/man/$each" "share/man/$each"; done
    say "$PREFIX/current is stepkeeper $version now"
}

# Keeps the release in use, and the one before it for going back.
forget_releases() {
    # shellcheck disable=SC2012 # the names are this script's own: a time and a number
    ls -1d "$PREFIX"/releases/* | sort -r | tail -n +3 | while read -r old; do
        [ "$old" = "$(readlink "$PREFIX/current")" ] || rm -rf "$old"
    done
}

# --- the service ---------------------------------------------------------------------------------------------------

# put FILE PLACE: copies if it differs; sets `changed`
put() {
    if ! cmp -s "$1" "$2"; then
        mkdir -p "$(dirname -- "$2")"
        install -m 0644 "$1" "$2"
        say "wrote $2"
        changed=yes
    fi
}

install_service() {
    changed=no
    put "$SOURCE/systemd/stepkeeper.sysusers" /etc/sysusers.d/stepkeeper.conf
    systemd-sysusers /etc/sysusers.d/stepkeeper.conf
    put "$SOURCE/systemd/stepkeeper.tmpfiles" /etc/tmpfiles.d/stepkeeper.conf
    systemd-tmpfiles --create /etc/tmpfiles.d/stepkeeper.conf
    put "$SOURCE/systemd/stepkeeper.slice" "$UNITS/stepkeeper.slice"
    put "$SOURCE/systemd/stepkeeper.service" "$UNITS/stepkeeper.service"
    install_drop_ins
    [ -z "$checkpoints" ] || install_checkpoints
    [ "$changed" = no ] || systemctl daemon-reload
}

# Each is for the systemd whose number it begins with, and later ones.
install_drop_ins() {
    for each in "$SOURCE"/systemd/drop-ins/*.conf; do
        name=$(basename -- "$each")
        if [ "$systemd" -ge "${name%%-*}" ]; then
            put "$each" "$UNITS/stepkeeper.service.d/$name"
        fi
    done
}

install_checkpoints() {
    made=$(mktemp)
    {
        printf '# Written by install.sh --checkpoints.\n[Unit]\nRequiresMountsFor=%s\n' "${checkpoints# }"
        printf '[Service]\nReadWritePaths=%s\n' "${checkpoints# }"
    } >"$made"
    put "$made" "$UNITS/stepkeeper.service.d/checkpoints.conf"
    rm -f "$made"
    for each in $checkpoints; do
        if [ ! -d "$each" ]; then
            install -d -m 0750 -o stepkeeper -g stepkeeper "$each"
            say "made $each"
        elif [ "$(stat -c %U "$each")" != stepkeeper ]; then
            say "$each belongs to $(stat -c %U "$each"); see to it that the user stepkeeper may write there"
        fi
    done
}

install_configuration() {
    mkdir -p "$CONFIG/conf.d"
    if [ -e "$CONFIG/supervisord.conf" ]; then
        say "leaves $CONFIG/supervisord.conf as it is"
    else
        install -m 0644 "$HERE/supervisord.conf" "$CONFIG/supervisord.conf"
        say "wrote $CONFIG/supervisord.conf; programs go into $CONFIG/conf.d"
    fi
}

# --- the three acts ------------------------------------------------------------------------------------------------

install_all() {
    check_host
    if [ -e "$PREFIX/current" ]; then
        say "finds stepkeeper in $PREFIX already and leaves the program as it is; a new one: install.sh --upgrade"
    else
        check_python
        make_release
        use_release
    fi
    install_configuration
    install_service
    if [ "$start" = yes ]; then
        systemctl enable --quiet --now stepkeeper.service ||
            fail "the service does not start; journalctl -u stepkeeper says why"
        say "stepkeeper runs: systemctl status stepkeeper, supervisorctl status"
    else
        say "not started: systemctl enable --now stepkeeper"
    fi
    say_polkit
}

# logind asks polkit whether somebody other than root may delay a shutdown; polkit's own rules say yes.
say_polkit() {
    [ -e /usr/share/polkit-1/actions/org.freedesktop.login1.policy ] && command -v pkaction >/dev/null && return
    say "finds no polkit, so logind lets nobody but root delay a shutdown, and jobs flush when systemd stops the service;" \
        "with it they do so before anything is stopped: apt install polkitd"
}

upgrade() {
    check_host
    [ -e "$PREFIX/current" ] || fail "finds nothing to upgrade in $PREFIX; install first: install.sh"
    check_python
    make_release
    if ! "$release/bin/supervisord" --check-config -c "$CONFIG/supervisord.conf"; then
        fail "the new release can't use $CONFIG/supervisord.conf, see above; nothing was changed"
    fi
    before=$(readlink "$PREFIX/current")
    use_release
    install_service
    if is_running; then
        replace_daemon
    else
        say "the service is not running; it will start with the new release"
    fi
    forget_releases
}

# The new release takes over in the process of the old: for systemd the service goes on, and so do the jobs.
replace_daemon() {
    said=$("$PREFIX/current/bin/supervisorctl" -c "$CONFIG/supervisord.conf" reload) || case $said in
        *"Restarted supervisord") ;;  # status 1: it names jobs whose changed sections would lose steps
        *)
            [ -z "$said" ] || say "$said"
            fail "the daemon does not answer, so the old release runs on (back to it: ln -sfn $before $PREFIX/current);" \
                "the new one comes with systemctl restart stepkeeper"
            ;;
    esac
    say "$said"
    waited=0
    until is_replaced; do
        [ "$waited" -lt 600 ] || fail "the new release does not answer; journalctl -u stepkeeper says why"
        sleep 1
        waited=$((waited + 1))
    done
    say "the new release supervises now"
    if [ "$changed" = yes ]; then
        say "the unit changed too; that needs systemctl restart stepkeeper, at a time of your own (jobs flush and go on)"
    fi
}

# Whether the daemon has files of the new release open, and answers.
is_replaced() {
    pid=$(systemctl show --property=MainPID --value stepkeeper.service)
    grep -qF "$release/" "/proc/$pid/maps" 2>/dev/null || return 1
    "$PREFIX/current/bin/supervisorctl" -c "$CONFIG/supervisord.conf" pid >/dev/null 2>&1
}

uninstall() {
    [ "$(id -u)" = 0 ] || fail "must run as root; run it with sudo"
    if [ -e "$UNITS/stepkeeper.service" ]; then
        say "stops the service; jobs flush first"
        systemctl disable --quiet --now stepkeeper.service
    fi
    for each in $COMMANDS $MANUAL; do
        case $each in man*) link=/usr/local/share/man/$each ;; *) link=/usr/local/bin/$each ;; esac
        case $(readlink "$link") in "$PREFIX"/*) rm "$link" ;; esac
    done
    rm -rf "$UNITS/stepkeeper.service" "$UNITS/stepkeeper.slice" "$PREFIX" \
        "$UNITS"/stepkeeper.service.d/[0-9]*.conf /etc/sysusers.d/stepkeeper.conf /etc/tmpfiles.d/stepkeeper.conf
    systemctl daemon-reload
    say "stepkeeper is gone. Kept: $CONFIG (configuration), /var/lib/stepkeeper (history), /var/log/stepkeeper (logs)," \
        "your checkpoints, $UNITS/stepkeeper.service.d (what you wrote there) and the user stepkeeper, who owns them"
}

# Two at once would each delete what the other has just made, and wait for a daemon that the other has replaced.
if [ "$(id -u)" = 0 ] && command -v flock >/dev/null; then
    exec 9>"$LOCK"
    flock --nonblock 9 || fail "another install.sh is at work on this host; wait for its end, then run this again"
fi

case $act in
    install) install_all ;;
    upgrade) upgrade ;;
    uninstall) uninstall ;;
esac
