package vm

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

func TestPrefixWriter(t *testing.T) {
	var buf bytes.Buffer
	w := &PrefixWriter{Prefix: "A| ", Out: &buf, Mu: new(sync.Mutex)}
	for _, part := range []string{"one", " line\ntwo\n", "", "\nhalf"} {
		io.WriteString(w, part)
	}
	want := "A| one line\nA| two\nA| \n"
	if buf.String() != want {
		t.Errorf("before Flush: %q, want %q", buf.String(), want)
	}
	w.Flush()
	w.Flush()
	if want += "A| half\n"; buf.String() != want {
		t.Errorf("after Flush: %q, want %q", buf.String(), want)
	}
}

func TestOops(t *testing.T) {
	for line, want := range map[string]string{
		"[    5.1] Kernel panic - not syncing: sysrq triggered crash\r": "Kernel panic - not syncing: sysrq triggered crash",
		"[    5.1] BUG: kernel NULL pointer dereference":                "BUG: kernel NULL pointer dereference",
		"[    5.1] kernel BUG at mm/slub.c:1!":                          "kernel BUG at mm/slub.c:1!",
		"[    5.1] rdma_rxe: loaded":                                    "",
	} {
		if got := oops("before\n" + line + "\nafter"); got != want {
			t.Errorf("oops(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestConsoleNote(t *testing.T) {
	if got := consoleNote(" \r\n"); got != "" {
		t.Errorf("note of an empty console: %q", got)
	}
	var long strings.Builder
	for i := range 100 {
		fmt.Fprintf(&long, "line %d\r\n", i)
	}
	got := consoleNote(long.String())
	if strings.Contains(got, "line 59\n") || !strings.Contains(got, "  line 60\n") || !strings.HasSuffix(got, "  line 99") {
		t.Errorf("not the last 40 lines: %q", got)
	}
}

// qmp plays QEMU's side of a monitor.
type qmp struct {
	io.Reader
	asked []string
}

func (q *qmp) Write(p []byte) (int, error) {
	q.asked = append(q.asked, strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestMonitor(t *testing.T) {
	q := &qmp{Reader: strings.NewReader(`{"QMP": {"version": {}}}
{"return": {}}
{"event": "NIC_RX_FILTER_CHANGED"}
{"return": {}}
{"error": {"class": "DeviceNotFound", "desc": "Device 'cable' not found"}}
`)}
	m := newMonitor(q)
	if err := m.setLink(false); err != nil {
		t.Fatal(err)
	}
	if err := m.setLink(true); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("error %v, want QEMU's", err)
	}
	if err := m.setLink(true); err == nil {
		t.Error("no error though the monitor has closed")
	}
	want := `{"arguments":{"name":"cable","up":false},"execute":"set_link"}`
	if len(q.asked) != 4 || q.asked[1] != want {
		t.Errorf("asked %q", q.asked)
	}
}
