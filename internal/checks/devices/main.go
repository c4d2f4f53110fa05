// Devices prints the RDMA devices of the system, or why there are none. tools/builds.sh runs it where something is missing.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/verbs"
)

func main() {
	for _, p := range rdma.Providers() {
		if p.Name() != "system" {
			continue
		}
		devices, err := p.Devices()
		for _, d := range devices {
			fmt.Println(d.Name())
		}
		if errors.Is(err, verbs.ErrNoDevice) {
			fmt.Println(err)
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
