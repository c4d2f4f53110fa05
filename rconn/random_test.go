package rconn

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// All methods at once, at all moments, on a tiny window: nothing hangs, panics, races or leaks.
//
// fault: DEATH-4, MEM-8 (software)
func TestEverythingAtOnce(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		if dev.fabric != nil {
			dev.fabric.Latency = 10 * time.Microsecond
		}
		for seed := range uint64(30) {
			n := dev.network(t, Config{SendBuffer: 64, RecvBuffer: 64, Credits: 4, SendQueue: 16, Linger: 50 * time.Millisecond,
				KeepAlive: time.Millisecond, KeepAliveTimeout: time.Second})
			d, a := n.pair(t)
			within(t, func() {
				var wg sync.WaitGroup
				for i, c := range []*Conn{d, a, d, a} {
					wg.Go(func() {
						r := rand.New(rand.NewPCG(seed, uint64(i)))
						buf := make([]byte, 300)
						for range 100 {
							switch r.IntN(9) {
							case 0, 1:
								c.Read(buf[:r.IntN(300)])
							case 2, 3:
								c.Write(buf[:r.IntN(300)])
							case 4:
								c.SetDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Microsecond))
							case 5:
								c.SetReadDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Microsecond))
							case 6:
								c.SetWriteDeadline(time.Now().Add(time.Duration(r.IntN(300)) * time.Microsecond))
							case 7:
								c.Stats()
								c.Info()
							case 8:
								if r.IntN(30) == 0 {
									c.CloseWrite()
								} else if r.IntN(30) == 0 {
									c.CloseRead()
								} else if r.IntN(30) == 0 {
									c.Close()
								}
							}
						}
						time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
						c.Close()
					})
					wg.Go(func() { // no call blocks for ever
						for range 50 {
							time.Sleep(500 * time.Microsecond)
							c.SetDeadline(time.Now())
						}
						c.Close()
					})
				}
				wg.Wait()
			})
		}
	})
}
