//go:build programs

// Package programs names the commands that tools/build-go.sh builds, so that `go mod tidy` keeps what they need.
package programs

import (
	_ "github.com/cri-o/cri-o/cmd/crio"
	_ "github.com/cri-o/cri-o/test/copyimg"
)
