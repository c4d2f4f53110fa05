# shellcheck shell=bash
# Sourced: title LINE begins a part of what is printed.

title() { printf '\n== %s\n' "$*"; }
