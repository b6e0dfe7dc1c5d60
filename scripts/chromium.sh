#!/bin/sh
# Makes sure that the browser tests find Debian's Chromium; playwright's own download is not used. Preferred is its
# headless shell (tests/web.py says why). Where that cannot be installed, chromium serves.
set -eu
command -v chromium-headless-shell >/dev/null && exit 0

has_chromium() {
    command -v chromium >/dev/null
}

get() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        "$1" fonts-dejavu-core fonts-noto-color-emoji >/dev/null
}

as_root=""
if [ "$(id -u)" != 0 ]; then
    has_chromium && exit 0 # it serves: nobody is asked for a password
    as_root="sudo"
fi
if command -v apt-get >/dev/null; then
    $as_root apt-get update -qq && get chromium-headless-shell || has_chromium || get chromium
elif ! has_chromium; then
    echo "The browser tests need the program chromium: install it with your system's package manager." >&2
    exit 1
fi
