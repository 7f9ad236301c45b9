//go:build programs

// Package programs names the command that tools/build-go.sh builds, so that `go mod tidy` keeps what it needs.
package programs

import (
	_ "k8s.io/kubernetes/cmd/kubemark"
)
