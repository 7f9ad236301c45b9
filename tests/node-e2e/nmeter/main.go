// nmeter prints the time with milliseconds once, the first line that busybox's `nmeter -d0 '%3t'` would print. Debian's
// busybox lacks it, and the specs of container life cycles put events in order by it.
package main

import (
	"fmt"
	"time"
)

func main() {
	fmt.Println(time.Now().Format("15:04:05.000"))
}
