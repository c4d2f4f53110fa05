package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
)

// A thousand connections, some of which end badly, leave no goroutine and no file behind.
func TestShortConnectionsLeakNothing(t *testing.T) {
	forNetworks(t, func(t *testing.T, network string) {
		c := newChain(t, network, serve(t, network, echo))
		use := func(i int) {
			client := c.dial(t)
			defer client.Close()
			roundTrip(t, client, fmt.Sprint("connection ", i))
			switch i % 4 {
			case 0:
				reset(client)
			case 1:
				client.CloseWrite()
			}
		}
		settled := func() (goroutines, files int) {
			for _, i := range []*instance{c.front, c.back} {
				eventually(t, "all end", func() bool { return i.open(t) == 0 })
			}
			return runtime.NumGoroutine(), openFiles(t)
		}
		use(1)
		goroutines, files := settled()
		var clients sync.WaitGroup
		each := map[string]int{"tcp": 250, "unix": 50}[network]
		for g := range 4 {
			clients.Go(func() {
				for i := range each {
					use(g + i)
				}
			})
		}
		clients.Wait()
		eventually(t, "goroutines and files are as before", func() bool {
			g, f := settled()
			return g <= goroutines && f <= files
		})
	})
}

// openFiles counts the file descriptors of this process, on Linux.
func openFiles(t testing.TB) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
