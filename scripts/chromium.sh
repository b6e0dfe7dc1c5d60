#!/bin/sh
# Makes sure that the browser tests find Debian's chromium; playwright's own download is not used.
set -eu
command -v chromium >/dev/null && exit 0
if ! command -v apt-get >/dev/null; then
    echo "The browser tests need chromium at /usr/bin/chromium: install it with your system's package manager." >&2
    exit 1
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    chromium fonts-dejavu-core fonts-noto-color-emoji >/dev/null
