//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A pipe in the folder is not opened: that would wait for a writer.
func TestPipeIsNotServed(t *testing.T) {
	s := newSite(t).start(t, "127.0.0.1:0")
	require.NoError(t, syscall.Mkfifo(filepath.Join(s.dir, "pipe"), 0o644))
	for _, path := range []string{"pipe", "pipe/"} {
		resp, _ := ask(t, plain(t), "GET", s.url+path)
		require.Equal(t, 404, resp.StatusCode)
	}
}
