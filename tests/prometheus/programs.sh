#!/usr/bin/env bash
# Debian's Prometheus with its promtool: 19 MB the first time.
exec "$(dirname "$0")/../programs.sh" mpsd-prom prometheus=prometheus promtool=prometheus
