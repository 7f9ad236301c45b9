#!/bin/sh
# First process of the test server image: listens on $PORT (8080) after $START_DELAY seconds.
# Ends with status 0 on SIGTERM, and with the status that a request to /exit/N asked for.
mkdir -p /tmp/testserver
trap 'echo "stopping"; kill $server 2>/dev/null; exit 0' TERM INT
[ -n "$START_DELAY" ] && { sleep "$START_DELAY" & wait $!; }
nc -ll -p "${PORT:-8080}" -e /srv/answer.sh &
server=$!
echo "listening on port ${PORT:-8080}"
wait $server
exit "$(cat /tmp/testserver/exit 2>/dev/null || echo 1)"
