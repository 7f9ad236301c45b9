// The shell of the stand-in busybox image. Debian's ash drops variables whose names are no shell names, such as
// data-1; specs that print the environment with `sh -c env` want them. Everything else is busybox's business.
package main

import (
	"os"
	"syscall"
)

func main() {
	arguments := os.Args // its name, too: busybox says it in front of its errors
	if len(os.Args) == 3 && os.Args[1] == "-c" && os.Args[2] == "env" {
		arguments = []string{"env"}
	}
	if err := syscall.Exec("/bin/busybox", arguments, os.Environ()); err != nil {
		os.Stderr.WriteString("sh: /bin/busybox: " + err.Error() + "\n")
		os.Exit(126)
	}
}
