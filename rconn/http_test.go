package rconn

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// serveHTTP serves a handler and returns a client and the server's URL.
func serveHTTP(t *testing.T, n *network, h http.Handler) (*http.Client, string) {
	ln := n.listen(t, n.addr)
	srv := &http.Server{Handler: h}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	tr := &http.Transport{DialContext: n.dialer().DialContext}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		require.NoError(t, srv.Shutdown(context.Background())) // t.Context() is over by now
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	return &http.Client{Transport: tr}, "http://" + ln.Addr().String()
}

func TestHTTP(t *testing.T) {
	forDevices(t, func(t *testing.T, dev device) {
		n := dev.network(t, Config{})
		file := make([]byte, 4<<20)
		rand.Read(file)
		client, url := serveHTTP(t, n, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				k, err := io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, k, err)
				return
			}
			w.Write(file)
		}))
		within(t, func() {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 2 {
						resp, err := client.Get(url)
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || string(got) != string(file) {
							t.Error(len(got), err)
						}
					}
				})
			}
			wg.Wait()
			resp, err := client.Post(url, "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
			require.NoError(t, err)
			got, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			require.Equal(t, "1048576 <nil>", string(got))
		})
	})
}
