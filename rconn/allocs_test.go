package rconn

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/verbs/verbstest"
)

// Read and Write allocate nothing, and nor does the fabric below once its queues have their storage, whether they wait or not, with a deadline or without.
func TestReadAndWriteAllocateNothing(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{SendBuffer: 64 << 10, RecvBuffer: 64 << 10, KeepAlive: -1})
		d, a := n.pair(t)
		buf := make([]byte, 100<<10)
		var parts [2][]byte
		zero := func(name string, f func() error) {
			t.Helper()
			for range 300 {
				require.NoError(t, f(), name)
			}
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if err := f(); err != nil {
					t.Error(err)
				}
			}), name)
		}
		ping := func(size int) func() error {
			return func() error {
				if _, err := d.Write(buf[:size]); err != nil {
					return err
				}
				_, err := io.ReadFull(a, buf[:size])
				return err
			}
		}
		for _, far := range []time.Time{{}, time.Now().Add(time.Hour)} {
			require.NoError(t, d.SetDeadline(far))
			require.NoError(t, a.SetDeadline(far))
			zero("inline", ping(10))
			zero("copied", ping(1000))
			zero("around the ring", ping(30_000))
			zero("many small ones", func() error {
				for range 100 {
					if _, err := d.Write(buf[:100]); err != nil {
						return err
					}
				}
				_, err := io.ReadFull(a, buf[:100*100])
				return err
			})
			zero("WriteBuffers", func() error {
				parts = [2][]byte{buf[:10], buf[10:2000]}
				v := net.Buffers(parts[:])
				if _, err := d.WriteBuffers(&v); err != nil {
					return err
				}
				_, err := io.ReadFull(a, buf[:2000])
				return err
			})
			// With waiting: another goroutine takes what comes, and sends a little of it back.
			const size = 90 << 10 // more than the rings
			var wg sync.WaitGroup
			wg.Go(func() {
				for back := make([]byte, size); ; {
					_, err := io.ReadFull(a, back[:500])
					if err == nil && back[0] == 'L' {
						_, err = io.ReadFull(a, back[500:])
					}
					if err == nil && back[0] == 'Q' {
						return
					}
					if err == nil {
						_, err = a.Write(back[:500])
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
			exchange := func(first byte, size int) func() error {
				return func() error {
					buf[0] = first
					if _, err := d.Write(buf[:size]); err != nil {
						return err
					}
					_, err := io.ReadFull(d, buf[:500])
					return err
				}
			}
			zero("to and fro", exchange('S', 500))
			zero("more than the rings", exchange('L', size))
			buf[0] = 'Q'
			_, err := d.Write(buf[:500])
			require.NoError(t, err)
			wg.Wait()
		}
		t.Logf("%d and %d waits", d.Stats().Waits, a.Stats().Waits)
		require.NotZero(t, d.Stats().Waits)
		for _, c := range []*Conn{d, a} {
			require.NoError(t, c.SetLinger(0))
			require.NoError(t, c.Close())
		}
	})
}

func TestSetDeadlineAllocatesNothing(t *testing.T) {
	n := newNetwork(t, verbstest.Config{}, Config{})
	d, a := n.pair(t)
	defer a.Close()
	defer d.Close()
	require.Zero(t, testing.AllocsPerRun(100, func() { d.SetDeadline(time.Now().Add(time.Minute)) }))
}
