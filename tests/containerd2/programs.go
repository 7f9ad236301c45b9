//go:build programs

// Package programs names the commands that tools/build-go.sh builds, so that `go mod tidy` keeps what they need.
package programs

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
