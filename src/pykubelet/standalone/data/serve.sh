#!/bin/sh
# First process of the test server image: listens on $PORT (8080) after $START_DELAY seconds.
# Ends with status 0 on SIGTERM, and with the status that a request to /exit/N asked for.
mkdir -p /tmp/testserver
trap 'echo "stopping"; kill $server 2>/dev/null; exit 0' TERM INT
[ -n "$START_DELAY" ] && { sleep "$START_DELAY" & wait $!; }
nc -ll -p "${PORT:-8080}" -e /srv/answer.sh &
server=$!
# Say so only when it is true: tests take this line for "connections are answered from now on".
listening=":$(printf '%04X' "${PORT:-8080}") [0-9A-F]*:0000 0A "
until grep -q "$listening" /proc/net/tcp /proc/net/tcp6 2>/dev/null || ! kill -0 $server 2>/dev/null; do usleep 2000; done
echo "listening on port ${PORT:-8080}"
wait $server
exit "$(cat /tmp/testserver/exit 2>/dev/null || echo 1)"
