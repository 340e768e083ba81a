# Functions that `.ci/setup` and `.ci/fresh` share. Sourced, not run; the caller sets `program`, its line prefix.

say() { printf '%s: %s\n' "$program" "$*"; }
die() { printf '%s: %s\n' "$program" "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else die "root is needed for: $* — run that by hand as root, then run .ci/$program again"
    fi
}

# install_missing PACKAGE... — apt-get is called only when dpkg does not know one of them as installed.
install_missing() {
    local missing=() package
    for package in "$@"; do
        # Debian's time_t transition renamed some libraries: libcurl4t64 provides libcurl4, and so on.
        { dpkg-query -W -f '${db:Status-Status}\n' "$package" "${package}t64" 2>/dev/null || true; } | grep -x installed >/dev/null ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing Debian packages: ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" || {
        as_root apt-get update
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
    }
}

# The archive and the suite that this machine's own apt uses, whatever form its configuration has (deb822 or one line).
apt_archive() {
    apt-get update --print-uris 2>/dev/null |
        sed -nE "s#^'([^']+)/dists/([^/']+)/InRelease'.*#\1 \2#p" |
        awk '$2 !~ /-(security|updates|backports|proposed-updates)$/ && !found++'
}
