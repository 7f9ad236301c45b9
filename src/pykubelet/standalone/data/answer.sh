#!/bin/sh
# Answers one HTTP request on stdin and stdout. Paths: see usage below; anything else is 404.
state=/tmp/testserver
read -r method target version || exit 0
length=0
headers=
while IFS= read -r line; do
  line=${line%"$(printf '\r')"}
  [ -n "$line" ] || break
  headers="$headers$line
"
  case $line in [Cc]ontent-[Ll]ength:*) length=$(printf '%s' "${line#*:}" | tr -dc 0-9) ;; esac
done
body=
[ "$length" -gt 0 ] && body=$(head -c "$length")
path=${target%%\?*}
rest=${path#/*/}

answer() { # status, text
  printf 'HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %s\r\nConnection: close\r\n%b\r\n' \
    "$1" "$((${#2} + 1))" "$3"
  [ "$method" = HEAD ] || printf '%s\n' "$2"
}

echo "$method $target" >&2  # stdout is the connection
case $path in
  /) answer "200 OK" "hello from $(hostname)
/healthz  /fail  /recover  /env  /hostname  /headers  /echo  /delay/SECONDS  /status/CODE  /redirect/PATH  /exit/STATUS" ;;
  /healthz | /readyz) if [ -e $state/failing ]; then answer "500 Internal Server Error" "failing"; else answer "200 OK" "ok"; fi ;;
  /fail) touch $state/failing; answer "200 OK" "failing from now on" ;;
  /recover) rm -f $state/failing; answer "200 OK" "ok from now on" ;;
  /env) answer "200 OK" "$(env)" ;;
  /hostname) answer "200 OK" "$(hostname)" ;;
  /headers) answer "200 OK" "$headers" ;;
  /echo) answer "200 OK" "$body" ;;
  /delay/*) sleep "$rest"; answer "200 OK" "slept $rest" ;;
  /status/*) answer "$rest Asked" "status $rest" ;;
  /redirect/*) answer "302 Found" "see /$rest" "Location: /$rest\r\n" ;;
  /exit/*) echo "$rest" >$state/exit; answer "200 OK" "leaving with status $rest"; kill "$PPID" ;;
  *) answer "404 Not Found" "no such path: $path" ;;
esac
