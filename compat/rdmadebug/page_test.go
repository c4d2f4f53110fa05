package rdmadebug

import (
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
)

func TestPageAfterKnownTraffic(t *testing.T) {
	w := newWorld(t, verbstest.Config{Device: verbstest.DeviceConfig{Transport: verbs.TransportIWARP}})
	d, a := w.pair(t)
	send(t, d, a, 20_000)
	send(t, a, d, 123)
	r := get(w.handler(), "/debug/rdma", "text/html,*/*")
	require.Equal(t, 200, r.Code)
	require.Equal(t, "text/html; charset=utf-8", r.Header().Get("Content-Type"))
	page := parse(t, r.Body.String())
	require.Len(t, page, 4)

	require.Equal(t, "1", page["Devices"].count)
	device := page["Devices"].rows[0]
	require.Equal(t, "iWARP", device["transport"])
	require.Equal(t, "ACTIVE", device["state"])
	require.Equal(t, "fabric", device["provider"])
	require.Equal(t, "1", device["port"])
	require.Contains(t, device["GIDs"], "0=")
	require.Equal(t, "not counted", device["retries"])

	listener := page["Listeners"].rows[0]
	require.Equal(t, w.ln.addr, listener["address"])
	require.Equal(t, device["device"], listener["device"])
	for column, want := range map[string]string{
		"accepted": "1", "failed": "0", "handshakes": "0", "waiting": "0", "open": "1", "sent": "123", "received": "19.5 KiB",
	} {
		require.Equal(t, want, listener[column], column)
	}

	require.Equal(t, "2", page["Connections"].count)
	rows := page["Connections"].rows
	i := slices.IndexFunc(rows, func(r map[string]string) bool { return r["side"] == "dialed" })
	dialed, accepted := rows[i], rows[1-i]
	for column, want := range map[string]string{
		"state": "open", "local": d.LocalAddr().String(), "remote": w.ln.addr, "sent": "19.5 KiB", "received": "123", "unread": "0",
		"QP": fmt.Sprint(d.Info().QPNum), "stalls": fmt.Sprint(d.Stats().WriteStalls), "probes": "0", "device": d.Info().Device,
	} {
		require.Equal(t, want, dialed[column], column)
	}
	require.Equal(t, "accepted", accepted["side"])
	require.Contains(t, dialed["credits"], " of 16")

	require.Len(t, page["Totals"].rows, 2)
	require.Equal(t, "all", page["Totals"].rows[0]["host"])

	require.NoError(t, d.Close())
	require.NoError(t, a.Close())
	require.NoError(t, w.ln.Close())
	page = parse(t, get(w.handler(), "/", "text/html").Body.String())
	require.Equal(t, shown{count: "0", note: "none"}, page["Connections"])
	require.Equal(t, shown{count: "0", note: "none"}, page["Listeners"])
	require.Equal(t, "19.5 KiB", page["Totals"].rows[0]["received"])
	require.Equal(t, "0", page["Totals"].rows[0]["open"])
}

func TestFormats(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	d, _ := w.pair(t)
	h := w.handler()
	for _, c := range []struct{ target, accept, want string }{
		{"/", "*/*", "text/plain; charset=utf-8"}, // curl
		{"/", "", "text/plain; charset=utf-8"},
		{"/", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html; charset=utf-8"},
		{"/", "application/json", "application/json"},
		{"/?format=text", "text/html", "text/plain; charset=utf-8"},
		{"/?format=json", "text/html", "application/json"},
		{"/?format=html", "*/*", "text/html; charset=utf-8"},
	} {
		r := get(h, c.target, c.accept)
		require.Equal(t, 200, r.Code)
		require.Equal(t, c.want, r.Header().Get("Content-Type"), "%s %s", c.target, c.accept)
		require.Contains(t, r.Body.String(), d.LocalAddr().String())
		require.Equal(t, "no-store", r.Header().Get("Cache-Control"))
	}
	require.Equal(t, 400, get(h, "/?format=xml", "").Code)
	r := httptest.NewRecorder()
	h.ServeHTTP(r, httptest.NewRequest(http.MethodPost, "/", nil))
	require.Equal(t, 405, r.Code)
	require.Equal(t, "GET, HEAD", r.Header().Get("Allow"))
}

func TestTextHasAlignedColumns(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	w.pair(t)
	w.pair(t)
	text := get(w.handler(), "/", "").Body.String()
	_, text, found := strings.Cut(text, "\nConnections: 4\n")
	require.True(t, found)
	lines := strings.Split(text, "\n")[:5]
	at := strings.Index(lines[0], "REMOTE")
	require.Positive(t, at)
	for _, line := range lines[1:] {
		require.Equal(t, "10.0.0.", line[at:at+7])
	}
}

// The names of JSON are what programs rely on.
func TestJSONNames(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	d, a := w.pair(t)
	send(t, d, a, 777)
	var doc struct {
		Time    string
		Devices struct {
			Rows []struct {
				Device, State string
				GIDs          []struct{ GID, Type string }
			}
		}
		Listeners, Totals struct {
			Count, LeftOut int
			Rows           []map[string]any
		}
		Conns struct {
			Count, LeftOut int
			Rows           []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(get(w.handler(), "/?format=json&sort=sent", "").Body.Bytes(), &doc))
	require.Equal(t, 2, doc.Conns.Count)
	first := doc.Conns.Rows[0]
	for name, want := range map[string]any{
		"State": "open", "Transport": "InfiniBand", "Device": d.Info().Device, "Local": d.LocalAddr().String(), "Remote": w.ln.addr, "Listener": "",
		"BytesSent": 777.0, "BytesReceived": 0.0, "PeerCredits": 16.0, "WriteStalls": 0.0, "Unread": 0.0, "SendBuffer": 65536.0,
	} {
		require.Equal(t, want, first[name], name)
	}
	require.Contains(t, first, "CreditsLeft")
	require.NotContains(t, first, "Err")
	require.Equal(t, 1.0, doc.Listeners.Rows[0]["Accepted"])
	require.Equal(t, 777.0, doc.Totals.Rows[1]["BytesReceived"])
	require.Equal(t, true, doc.Totals.Rows[1]["Accepted"])
	require.Equal(t, "ACTIVE", doc.Devices.Rows[0].State)
	require.NotEmpty(t, doc.Devices.Rows[0].GIDs)
}

func TestBrokenConnectionTellsWhy(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	d, _ := w.pair(t)
	w.server.Kill()
	_, err := d.Read(make([]byte, 1))
	require.Error(t, err)
	page := parse(t, get(w.handler(), "/?sort=state", "text/html").Body.String())
	require.Contains(t, fmt.Sprint(page["Connections"].rows), "broken connection reset by peer")
	require.Contains(t, get(w.handler(), "/", "").Body.String(), "connection reset by peer")
	require.NoError(t, d.Close())
	require.NotContains(t, get(w.handler(), "/", "").Body.String(), "broken")
}

func TestRowsAreBounded(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	for i := range 10 {
		d, a := w.pair(t)
		send(t, d, a, 100*(i+1))
	}
	h := w.handler()
	h.Rows = 3
	page := parse(t, get(h, "/?sort=received", "text/html").Body.String())
	c := page["Connections"]
	require.Equal(t, "20", c.count)
	require.Equal(t, "17 more are left out.", c.note)
	var received []string
	for _, row := range c.rows {
		received = append(received, row["received"])
	}
	require.Equal(t, []string{"1000", "900", "800"}, received)
	require.Contains(t, get(h, "/", "").Body.String(), "\n17 more are left out.\n")
	page = parse(t, get(h, "/?sort=no+such", "text/html").Body.String())
	require.Len(t, page["Connections"].rows, 3)

	var vars struct{ Conns struct{ Count, LeftOut int } }
	require.NoError(t, json.Unmarshal(get(h, "/?format=json", "").Body.Bytes(), &vars))
	require.Equal(t, 17, vars.Conns.LeftOut)
}

// Each title is a link that sorts by it, and says so.
func TestColumnsSort(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	for i := range 3 {
		d, a := w.pair(t)
		send(t, d, a, 100*(i+1))
		send(t, a, d, 1000-100*i)
	}
	for title, want := range map[string][]string{"sent": {"1000", "900", "800", "300", "200", "100"}, "side": nil, "remote": nil} {
		body := get(w.handler(), "/?format=html&sort="+title, "").Body.String()
		require.Contains(t, body, `href="?format=html&amp;sort=`+title+`"`)
		require.Contains(t, body, "aria-sort")
		var got []string
		for _, row := range parse(t, body)["Connections"].rows {
			got = append(got, row[title])
		}
		if want == nil {
			require.Len(t, got, 6)
			require.IsNonDecreasing(t, got)
		} else {
			require.Equal(t, want, got)
		}
	}
}

// Names and errors come from elsewhere.
func TestEscaping(t *testing.T) {
	const evil = `<script>alert("1")</script>`
	w := newWorld(t, verbstest.Config{Device: verbstest.DeviceConfig{Name: evil, Netdev: "e\x1b[2J\t'\"&<i>"}})
	w.pair(t)
	h := w.handler()
	h.Providers = append(h.Providers, failing{err: errors.New("\x1b]0;<b>none</b>\x07")})
	target := "/?sort=%22%3E%3Cscript%3E"
	page := parse(t, get(h, target, "text/html").Body.String()) // finds scripts
	require.Equal(t, evil, page["Devices"].rows[0]["device"])
	require.Equal(t, evil, page["Connections"].rows[0]["device"])
	require.Contains(t, page["Devices"].rows[1]["state"], "<b>none</b>")
	text := get(h, target, "").Body.String()
	require.NotContains(t, text, "\x1b")
	require.NotContains(t, text, "\x07")
	require.Contains(t, text, "e?[2J?'")
}

// failing is a provider that has no device.
type failing struct {
	cm.Provider
	err error
}

func (f failing) Name() string                     { return "failing" }
func (f failing) Devices() ([]verbs.Device, error) { return nil, f.err }

func TestMissingDevicesAreExplained(t *testing.T) {
	h := &Handler{Providers: []cm.Provider{failing{err: fmt.Errorf("%w: install libibverbs1", verbs.ErrNoDevice)}}}
	page := parse(t, get(h, "/", "text/html").Body.String())
	require.Len(t, page["Devices"].rows, 1)
	require.Equal(t, "failing", page["Devices"].rows[0]["provider"])
	require.Contains(t, page["Devices"].rows[0]["state"], "install libibverbs1")
	require.Empty(t, page["Devices"].rows[0]["port"])
	require.Equal(t, "none", page["Devices"].rows[0]["device"])
	require.Equal(t, "0", page["Devices"].count, "of devices, not of rows")
}

func TestDevicesAreCountedOnce(t *testing.T) {
	require.Equal(t, 2, devicesIn([]port{
		{Provider: "a"}, {Provider: "b", Device: "x", Port: 1}, {Provider: "b", Device: "x", Port: 2}, {Provider: "c", Device: "x", Port: 1},
	}))
}

// Those of this host: the software device at least, whatever else there is.
func TestDevicesOfThisHost(t *testing.T) {
	rows := parse(t, get(new(Handler), "/", "text/html").Body.String())["Devices"].rows
	i := slices.IndexFunc(rows, func(r map[string]string) bool { return r["device"] == "software0" })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, "ACTIVE", rows[i]["state"])
	require.Equal(t, "software", rows[i]["provider"])
}

func TestRetriesOfADevice(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	device := w.server.Device(0).Name()
	dir := device + "/ports/1/hw_counters/"
	h := w.handler()
	h.counters = fstest.MapFS{
		dir + "completer_retry_err": {Data: []byte("0\n")}, dir + "rcvd_seq_err": {Data: []byte("12\n")}, dir + "sent_pkts": {Data: []byte("999\n")},
		dir + "rnr_nak_retry_err": {Data: []byte("3\n")}, dir + "tcpRetransSegs": {Data: []byte("not a number\n")},
	}
	retries := func() string { return parse(t, get(h, "/", "text/html").Body.String())["Devices"].rows[0]["retries"] }
	require.Equal(t, "rcvd_seq_err 12, rnr_nak_retry_err 3", retries())
	h.counters = fstest.MapFS{dir + "completer_retry_err": {Data: []byte("0\n")}}
	require.Equal(t, "0", retries())
	h.counters = fstest.MapFS{}
	require.Equal(t, "not counted", retries())
}

func TestVars(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	d, a := w.pair(t)
	send(t, d, a, 4321)
	var v expvar.Var = expvar.Func(Vars(w.monitor))
	var doc map[string]struct {
		Count int
		Rows  []map[string]any
	}
	var raw map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(v.String()), &raw))
	delete(raw, "Time")
	rest, err := json.Marshal(raw)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(rest, &doc))
	require.Len(t, doc, 3)
	require.Equal(t, 2, doc["Conns"].Count)
	require.Equal(t, 4321.0, doc["Listeners"].Rows[0]["BytesReceived"])
	require.Equal(t, 4321.0, doc["Totals"].Rows[0]["BytesReceived"])
}

func TestNilMonitor(t *testing.T) {
	require.Contains(t, expvar.Func(Vars(nil)).String(), `"Conns":{"Count":0,"LeftOut":0,"Rows":[]}`)
}

// Pages are read while connections come, go and work.
func TestPagesDuringTraffic(t *testing.T) {
	w := newWorld(t, verbstest.Config{})
	srv := httptest.NewServer(w.handler())
	defer srv.Close()
	var serving, clients, readers sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := w.ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	done := make(chan struct{})
	for _, format := range []string{"html", "text", "json"} {
		readers.Go(func() {
			for {
				resp, err := http.Get(srv.URL + "?sort=sent&format=" + format)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || len(body) == 0 {
					t.Errorf("%d bytes, %v, %v", len(body), resp.Status, err)
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range 4 {
		clients.Go(func() {
			for range 10 {
				c, err := w.dialer.Dial("rdma", w.ln.addr)
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, 10_000)
				for range 20 {
					if _, err := c.Write(buf); err != nil {
						t.Error(err)
					}
					if _, err := io.ReadFull(c, buf); err != nil {
						t.Error(err)
					}
				}
				c.Close()
			}
		})
	}
	clients.Wait()
	close(done)
	readers.Wait()
	w.ln.Close()
	serving.Wait()
	s := w.monitor.Snapshot()
	require.Empty(t, s.Conns)
	require.Empty(t, s.Listeners)
	require.EqualValues(t, 40*20*10_000, s.Totals[1].BytesSent)
}

// A program that imports the package gets no /debug pages that it did not ask for.
func TestImportsNothingThatRegisters(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	deps := strings.Fields(string(out))
	require.Contains(t, deps, "net/http")
	require.NotContains(t, deps, "expvar")
	require.NotContains(t, deps, "net/http/pprof")
}

func TestSizesAreReadable(t *testing.T) {
	for n, want := range map[uint64]cell{
		0: {Text: "0"}, 9999: {Text: "9999"}, 10_240: {"10.0 KiB", "10240 bytes"}, 5 << 30: {"5.0 GiB", fmt.Sprintf("%d bytes", 5<<30)},
		1<<64 - 1: {"16384.0 PiB", "18446744073709551615 bytes"},
	} {
		require.Equal(t, want, bytesCell(n))
	}
}
