#!/bin/sh
# Give this node its pod network and routes to those of the others, and follow the nodes as they come and change.
set -u

install_plugins() {
  for plugin in /plugins/*; do
    cp "$plugin" "/host/bin/.${plugin##*/}" && mv "/host/bin/.${plugin##*/}" "/host/bin/${plugin##*/}" || exit 1
  done
}

# $1: this node's range of addresses. The file appears whole: the runtime reads it as soon as it is there.
write_config() {
  cat >/host/net.d/.new <<END
{
  "cniVersion": "1.0.0",
  "name": "node-network",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "cni0",
      "isGateway": true,
      "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "$1"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
  mv /host/net.d/.new /host/net.d/10-node-network.conflist
}

install_plugins
columns='{.metadata.name}|{.spec.podCIDR}|{.status.addresses[?(@.type=="InternalIP")].address}{"\n"}'
while true; do
  kubectl get nodes --watch --output jsonpath="$columns" | while IFS='|' read -r name range address; do
    if [ -z "$range" ] || [ -z "$address" ]; then continue; fi
    if [ "$name" = "$NODE_NAME" ]; then
      grep -qs "\"$range\"" /host/net.d/10-node-network.conflist && continue
      write_config "$range" && echo "pods of this node get addresses of $range"
    elif ! ip route show "$range" | grep -q "via $address "; then
      ip route replace "$range" via "$address" && echo "$range is reached via $address ($name)"
    fi
  done
  sleep 5
done
