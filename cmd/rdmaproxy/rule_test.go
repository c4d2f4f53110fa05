package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseRule(t *testing.T) {
	for s, want := range map[string][2]endpoint{
		"rdma://:6379=tcp://127.0.0.1:6379": {{network: "rdma", addr: ":6379"}, {network: "tcp", addr: "127.0.0.1:6379"}},
		"tcp4://[::1]:1?max=3=rdma6://host:2?device=mlx5_0": {
			{network: "tcp4", addr: "[::1]:1", max: 3}, {network: "rdma6", addr: "host:2", device: "mlx5_0"}},
		"unix:///run/a=b?mode=0660&max=10=rdma://h:1": {
			{network: "unix", addr: "/run/a=b", mode: 0o660, max: 10}, {network: "rdma", addr: "h:1"}},
		"rdma://h:1?device=no-software=unix:///run/x": {
			{network: "rdma", addr: "h:1", device: "no-software"}, {network: "unix", addr: "/run/x"}},
		"rdma://h:1=rdma://h:2": {{network: "rdma", addr: "h:1"}, {network: "rdma", addr: "h:2"}},
	} {
		r, err := parseRule(s)
		require.NoError(t, err, s)
		require.Equal(t, want, [2]endpoint{r.from, r.to}, s)
		require.Equal(t, want[0].max, cap(r.slots), s)
	}
}

func TestParseRuleErrors(t *testing.T) {
	for s, want := range map[string]string{
		"":                                      "want LISTEN=DIAL",
		"rdma://:1":                             "want LISTEN=DIAL",
		"rdma://:1=http://x:1":                  "want LISTEN=DIAL",
		":1=rdma://h:1":                         "in front",
		"tcp://:1=tcp://h:2":                    "one side must be rdma",
		"tcp://1=rdma://h:2":                    "HOST:PORT",
		"unix://x=rdma://h:2":                   "absolute path",
		"tcp://:1?max=0=rdma://h:2":             "max must be",
		"tcp://:1?mode=0660=rdma://h:2":         `no option "mode"`,
		"tcp://:1?device=x=rdma://h:2":          `no option "device"`,
		"tcp://:1=rdma://h:2?max=1":             `no option "max"`,
		"tcp://:1=rdma://h:2?colour=red":        `no option "colour"`,
		"unix:///x?mode=999=rdma://h:2":         "octal",
		"rdma://:1=unix:///x?mode=0660":         `no option "mode"`,
		"unix:///x?mode=07777=rdma://h:2":       "octal",
		"tcp://:1?max=2&max=many=rdma://h:2":    "max must be",
		"ftp://:1?max=2=rdma://h:2":             "in front",
		"rdma://:1?device=a&=rdma://h:2?device": "",
	} {
		_, err := parseRule(s)
		if want == "" {
			require.NoError(t, err, s)
		} else {
			require.ErrorContains(t, err, want, s)
		}
	}
}

// The command line is refused with a word about it, and the usage's status.
func TestUsage(t *testing.T) {
	const rule = "-forward=tcp://127.0.0.1:0=rdma://127.0.0.1:1"
	for _, c := range []struct {
		args   []string
		want   string
		status int
	}{
		{nil, "nothing to do", exitUsage},
		{[]string{rule, "more"}, `unexpected argument "more"`, exitUsage},
		{[]string{rule, "-max-conns=0"}, "-max-conns", exitUsage},
		{[]string{rule, "-idle=-1s"}, "-idle", exitUsage},
		{[]string{rule, "-dial-timeout=0"}, "-dial-timeout", exitUsage},
		{[]string{rule, "-ring=4GiB"}, "number of bytes", exitUsage},
		{[]string{rule, "-ring=1"}, "-ring", exitUsage},
		{[]string{rule, "-log-level=loud"}, "loud", exitUsage},
		{[]string{rule, "-page"}, "-page needs -metrics", exitUsage},
		{[]string{"-forward=x"}, "want LISTEN=DIAL", exitUsage},
		{[]string{"-h"}, "usage: rdmaproxy", exitOK},
		{[]string{"-forward=rdma://127.0.0.1:0?device=no-software=tcp://127.0.0.1:1"}, "no RDMA device", exitError},
		{[]string{rule, "-metrics=127.0.0.1:http-no-such"}, "http-no-such", exitError},
	} {
		var out bytes.Buffer
		require.Equal(t, c.status, run(c.args, &out, nil), c.args)
		require.Contains(t, out.String(), c.want, c.args)
	}
}

func TestBytesFlag(t *testing.T) {
	for s, want := range map[string]int{"0": 0, "4096": 4096, "4KiB": 4096, "3MiB": 3 << 20, "1024MiB": 1 << 30} {
		var b bytesFlag
		require.NoError(t, b.Set(s))
		require.EqualValues(t, want, b, s)
	}
	for _, s := range []string{"", "x", "-1", "1025MiB", "4kb", "KiB"} {
		require.Error(t, new(bytesFlag).Set(s), s)
	}
}
