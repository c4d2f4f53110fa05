//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody can connect to a socket before its permissions are those asked for: at no time it has more.
func TestUnixListenIsNeverWiderOpen(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	e := endpoint{network: "unix", addr: filepath.Join(shortDir(t), "s"), mode: 0o600}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if fi, err := os.Lstat(e.addr); err == nil && fi.Mode().Perm()&^0o600 != 0 {
				t.Errorf("the socket has %v", fi.Mode())
				return
			}
		}
	}()
	for range 2000 {
		ln, err := e.listen(t.Context(), &config{})
		require.NoError(t, err)
		require.NoError(t, ln.Close())
	}
	close(stop)
	<-done
	require.Equal(t, 0, syscall.Umask(0), "the umask is as it was")

	e.mode = 0o666
	syscall.Umask(0o077)
	ln, err := e.listen(t.Context(), &config{})
	require.NoError(t, err)
	defer ln.Close()
	fi, err := os.Lstat(e.addr)
	require.NoError(t, err)
	require.Equal(t, e.mode, fi.Mode().Perm(), "more than the umask leaves")
}
