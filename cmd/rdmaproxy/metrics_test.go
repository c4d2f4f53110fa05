package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are those of what was done, and every line is of Prometheus' text format.
func TestMetrics(t *testing.T) {
	addr, conns := handOver(t, "tcp")
	c := newChain(t, "tcp", addr)
	for n := 1; n <= 3; n++ {
		client := c.dial(t)
		backend := receive(t, conns)
		for range n {
			_, err := client.Write(make([]byte, 1000))
			require.NoError(t, err)
			_, err = io.ReadFull(backend, make([]byte, 1000))
			require.NoError(t, err)
		}
		_, err := backend.Write(make([]byte, 70_000))
		require.NoError(t, err)
		_, err = io.ReadFull(client, make([]byte, 70_000))
		require.NoError(t, err)
		for _, i := range []*instance{c.front, c.back} {
			require.Equal(t, 1, i.open(t))
			require.Equal(t, n, i.sum(t, "connections_total", ""))
			// Counted when the write returned, which may be a moment after it was read.
			eventually(t, "bytes are counted", func() bool { return i.sum(t, "bytes_total", `to="client"`) == n*70_000 })
			require.Equal(t, 1000*n*(n+1)/2, i.sum(t, "bytes_total", `to="backend"`))
		}
		client.Close()
		backend.Close()
		for _, i := range []*instance{c.front, c.back} {
			eventually(t, "the connection ends", func() bool { return i.open(t) == 0 })
			require.Equal(t, 0, i.sum(t, "errors_total", ""))
		}
	}
	sample := regexp.MustCompile(`^rdmaproxy_[a-z_]+(\{rule="[^"]+"(,[a-z]+="[a-z]+")?\})? \d+$`)
	comment := regexp.MustCompile(`^# (HELP rdmaproxy_[a-z_]+ .+|TYPE rdmaproxy_[a-z_]+ (gauge|counter))$`)
	for line := range strings.Lines(c.front.get(t, "/metrics")) {
		if line = strings.TrimSuffix(line, "\n"); !sample.MatchString(line) && !comment.MatchString(line) {
			t.Errorf("not of the format: %q", line)
		}
	}
	require.Contains(t, c.front.get(t, "/metrics"), "\nrdmaproxy_connections_max 1024\n")
	require.Contains(t, c.front.log.String(), "level=DEBUG msg=\"connection ended\"")
	require.Contains(t, c.front.log.String(), "bytes_up=3000 bytes_down=70000")
}

// The page for people has the rule, the connection's addresses, and what it runs on.
func TestPage(t *testing.T) {
	c := newChain(t, "unix", serve(t, "tcp", echo))
	client := c.dial(t)
	roundTrip(t, client, "0123456789")
	for _, i := range []*instance{c.front, c.back} {
		eventually(t, "bytes are counted", func() bool { return i.sum(t, "bytes_total", "") == 20 })
		page := i.get(t, "/")
		t.Log(page)
		require.Contains(t, page, "1 of at most 1024 connections")
		require.Contains(t, page, "1 open, 0 waiting, 1 accepted, 0 without a backend, 10 bytes to the backend, 10 to the client")
		require.Regexp(t, `\n  CLIENT +BACKEND +AGE +IDLE +UP +DOWN +DEVICE`, page)
		require.Regexp(t, ` 10 +10 +software0 +iWARP +\d+ +\d+\+\d+ +\d+/\d+ +\d+ +\d+/\d+ +\d+\n`, page)
	}
	require.Contains(t, c.front.get(t, "/"), c.front.addrs[0])
	require.Contains(t, c.front.get(t, "/"), c.back.addrs[0])
}

// Without -page there are numbers alone, which name no client.
func TestPageIsOptional(t *testing.T) {
	p := start(t, "-page=false", "tcp://127.0.0.1:0=rdma://127.0.0.1:1")
	p.get(t, "/metrics")
	resp, err := http.Get(p.metrics + "/")
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	resp.Body.Close()
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}

func TestLabelsAreEscaped(t *testing.T) {
	r, err := parseRule("unix:///a\"b\\c\nd=rdma://h:1")
	require.NoError(t, err)
	var out bytes.Buffer
	p := newProxy(&config{rules: []*rule{r}, maxConns: 1})
	p.stop = t.Context()
	p.writeMetrics(&out)
	require.Contains(t, out.String(), `{rule="unix:///a\"b\\c\nd=rdma://h:1"}`)
}

func TestKinds(t *testing.T) {
	for err, want := range map[error]string{
		errIdle:                               "idle",
		errStopped:                            "stopped",
		&net.OpError{Err: syscall.ECONNRESET}: "reset",
		fmt.Errorf("x: %w", os.ErrDeadlineExceeded): "timeout",
		&net.OpError{Err: syscall.ETIMEDOUT}:        "timeout",
		errors.New("x"):                             "other",
	} {
		require.Equal(t, want, kindOf(err).String(), err)
	}
}

// A client gives its Unix socket any name: one with a terminal's commands, or lines of the page.
func TestPageWithHostileName(t *testing.T) {
	c := newChain(t, "unix", serve(t, "unix", echo))
	local := filepath.Join(shortDir(t), "a\n\x1b[2J\tb")
	client, err := net.DialUnix("unix", &net.UnixAddr{Name: local}, &net.UnixAddr{Name: c.front.addrs[0]})
	require.NoError(t, err)
	defer client.Close()
	roundTrip(t, client, "x")
	page := c.front.get(t, "/")
	require.Contains(t, page, "/a??[2J?b ")
}
