//go:build programs

// Package programs names the commands that tools/build-go.sh builds, so that `go mod tidy` keeps what they need.
package programs

import (
	_ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
	_ "k8s.io/kubernetes/test/e2e/dra/test-driver"
	_ "k8s.io/kubernetes/test/images/sample-device-plugin"
)
