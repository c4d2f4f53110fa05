package compat

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stock net/http server and client, and each with one line changed and an import: README.md shows that. Each gets along
// with each other.
func TestPrograms(t *testing.T) {
	bin, files := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(files, "hello.txt"), []byte("hello, gopher"), 0o600))
	names := []string{"server/stock", "server/compat", "client/stock", "client/compat"}
	for _, name := range names {
		out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), "testdata/"+name+".go").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, server := range names[:2] {
		addr := startServer(t, filepath.Join(bin, server), files)
		for _, client := range names[2:] {
			cmd := exec.Command(filepath.Join(bin, client), "http://"+addr+"/hello.txt")
			cmd.Env = append(os.Environ(), "RCONN_DEVICE=software")
			var log bytes.Buffer
			cmd.Stderr = &log
			out, err := cmd.Output()
			require.NoError(t, err, "%s to %s: %s", client, server, &log)
			require.Equal(t, "hello, gopher", string(out))
			took := map[string]string{"client/compat server/compat": "took=software", "client/compat server/stock": "took=tcp"}[client+" "+server]
			require.Contains(t, log.String(), took, "%s to %s", client, server)
		}
	}
}

// startServer runs a server on a free port until the end of the test. If the port is taken meanwhile it tries another.
func startServer(t *testing.T, path, dir string) string {
	for range 5 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr := ln.Addr().String()
		require.NoError(t, ln.Close())
		cmd := exec.Command(path, "-addr", addr)
		cmd.Dir, cmd.Stderr = dir, os.Stderr
		require.NoError(t, cmd.Start())
		ended := make(chan struct{})
		go func() { cmd.Wait(); close(ended) }()
		t.Cleanup(func() { cmd.Process.Kill(); <-ended })
		for {
			resp, err := http.Get("http://" + addr + "/hello.txt")
			if err == nil {
				resp.Body.Close()
				http.DefaultClient.CloseIdleConnections()
				return addr
			}
			select {
			case <-ended:
			case <-time.After(10 * time.Millisecond):
				continue
			}
			break
		}
	}
	t.Fatal("no free port")
	return ""
}
