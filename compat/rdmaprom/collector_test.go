package rdmaprom

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
	"github.com/rconn/rdma/verbs/verbstest"
)

// world is a server and a client on a fabric, watched by one Monitor.
type world struct {
	client, server *verbstest.Host
	monitor        *rconn.Monitor
	ln             *rconn.Listener
	dialer         rconn.Dialer
}

const serverAddr, clientAddr = "10.0.0.2", "10.0.0.1"

func newWorld(t testing.TB, m *rconn.Monitor, name string) *world {
	fab := verbstest.NewFabric(verbstest.Config{Device: verbstest.DeviceConfig{Name: name}})
	t.Cleanup(fab.Close)
	w := &world{server: fab.Host("server", serverAddr), client: fab.Host("client", clientAddr), monitor: m}
	cfg := rconn.Config{Monitor: m, Linger: -1, SendBuffer: 64 << 10, RecvBuffer: 64 << 10, Credits: 16}
	lc := rconn.ListenConfig{Providers: []cm.Provider{w.server}, Config: cfg}
	ln, err := lc.Listen(context.Background(), "rdma", serverAddr+":0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	w.ln = ln.(*rconn.Listener)
	w.dialer = rconn.Dialer{Providers: []cm.Provider{w.client}, Config: cfg}
	return w
}

// pair makes a connection that lives as long as the test.
func (w *world) pair(t testing.TB) (dialed, accepted *rconn.Conn) {
	d, err := w.dialer.Dial("rdma", w.ln.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	a, err := w.ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close() })
	return d.(*rconn.Conn), a.(*rconn.Conn)
}

func send(t testing.TB, from, to *rconn.Conn, n int) {
	_, err := from.Write(make([]byte, n))
	require.NoError(t, err)
	_, err = io.ReadFull(to, make([]byte, n))
	require.NoError(t, err)
}

// server serves metrics as a program would. Its registry checks each value against its description.
func server(t testing.TB, c prometheus.Collector) string {
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(c))
	srv := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	t.Cleanup(srv.Close)
	return srv.URL
}

type families map[string]*dto.MetricFamily

// fetch does what Prometheus does.
func fetch(url string) (families, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, err := io.ReadAll(resp.Body)
		return nil, fmt.Errorf("%s: %s, %v", resp.Status, body, err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(resp.Body)
}

func scrape(t testing.TB, url string) families {
	t.Helper()
	f, err := fetch(url)
	require.NoError(t, err)
	return f
}

// of is the value of the series with just these labels, given as name, value, ...; the rest may be anything.
func (f families) of(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	require.Contains(t, f, name)
	var found []float64
	for _, m := range f[name].Metric {
		have := map[string]string{}
		for _, l := range m.Label {
			have[l.GetName()] = l.GetValue()
		}
		fits := true
		for i := 0; i < len(labels); i += 2 {
			fits = fits && have[labels[i]] == labels[i+1]
		}
		if fits {
			found = append(found, m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
	require.Len(t, found, 1, "%s%q in %v", name, labels, f[name])
	return found[0]
}

func TestScrapeAfterKnownTraffic(t *testing.T) {
	w := newWorld(t, new(rconn.Monitor), "dev")
	url := server(t, &Collector{Monitor: w.monitor, Conns: 10})
	require.Empty(t, scrape(t, url)["rdma_connections"])
	d, a := w.pair(t)
	send(t, d, a, 12_345)
	send(t, a, d, 67)
	_, err := d.Write(make([]byte, 100))
	require.NoError(t, err)
	_, err = io.ReadFull(a, make([]byte, 40))
	require.NoError(t, err)

	listener, local := w.ln.Addr().String(), d.LocalAddr().String()
	f := scrape(t, url)
	for name, want := range map[string]float64{
		"rdma_connections": 1, "rdma_connections_opened_total": 1, "rdma_sent_bytes_total": 12_445, "rdma_received_bytes_total": 67,
		"rdma_write_stalls_total": float64(d.Stats().WriteStalls), "rdma_completions_total": float64(d.Stats().Completions),
		"rdma_unread_bytes": 0, "rdma_unsent_bytes": 0,
	} {
		require.Equal(t, want, f.of(t, name, "device", "dev", "transport", "InfiniBand", "side", "dialed"), name)
	}
	require.Equal(t, 60.0, f.of(t, "rdma_unread_bytes", "side", "accepted"))
	require.Equal(t, 1.0, f.of(t, "rdma_connections_by_state", "side", "accepted", "state", "open"))
	for name, want := range map[string]float64{
		"rdma_listener_accepted_total": 1, "rdma_listener_handshakes_failed_total": 0, "rdma_listener_waiting_connections": 0,
		"rdma_listener_connections": 1, "rdma_listener_received_bytes_total": 12_445, "rdma_listener_sent_bytes_total": 67,
	} {
		require.Equal(t, want, f.of(t, name, "listener", listener, "network", "rdma"), name)
	}
	for name, want := range map[string]float64{
		"rdma_connection_sent_bytes_total": 12_445, "rdma_connection_received_bytes_total": 67, "rdma_connection_unsent_bytes": 0,
	} {
		require.Equal(t, want, f.of(t, name, "device", "dev", "side", "dialed", "local", local, "remote", listener), name)
	}
	require.Positive(t, f.of(t, "rdma_connection_credits", "local", local))
	require.InDelta(t, float64(w.monitor.Snapshot().Conns[0].Since.UnixMilli())/1000,
		f.of(t, "rdma_connection_opened_timestamp_seconds", "local", local), 5)
	for name, family := range f {
		want := dto.MetricType_GAUGE
		if strings.HasSuffix(name, "_total") {
			want = dto.MetricType_COUNTER
		}
		require.Equal(t, want, family.GetType(), name)
		require.NotEmpty(t, family.GetHelp())
	}

	// Broken by its peer, closed, and then the listener too.
	require.NoError(t, a.Close())
	_, err = d.Read(make([]byte, 1))
	require.Error(t, err)
	f = scrape(t, url)
	require.Equal(t, 1.0, f.of(t, "rdma_connections_by_state", "side", "dialed", "state", "broken"))
	require.NoError(t, d.Close())
	require.NoError(t, w.ln.Close())
	f = scrape(t, url)
	require.Equal(t, 0.0, f.of(t, "rdma_connections", "side", "dialed"))
	require.Equal(t, 12_445.0, f.of(t, "rdma_sent_bytes_total", "side", "dialed"))
	require.Equal(t, 1.0, f.of(t, "rdma_connections_opened_total", "side", "dialed"))
	for name := range f {
		require.False(t, strings.HasPrefix(name, "rdma_listener_") || strings.HasPrefix(name, "rdma_connection_"), name)
	}
}

// The rules for names, units and types that Prometheus' users expect, on what is really sent.
func TestLint(t *testing.T) {
	w := newWorld(t, new(rconn.Monitor), "dev")
	w.pair(t)
	resp, err := http.Get(server(t, &Collector{Monitor: w.monitor, Conns: 1}))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	for _, prefix := range []string{"rdma_sent", "rdma_listener_sent", "rdma_connection_sent"} {
		require.Contains(t, string(body), "\n"+prefix+"_bytes_total{")
	}
	problems, err := promlint.New(strings.NewReader(string(body))).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

// The package's documentation names every metric, the counts by their ends.
func TestDocNamesAllMetrics(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	named := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z_]+`).FindAllString(string(doc), -1) {
		named[word] = true
	}
	w := newWorld(t, new(rconn.Monitor), "dev")
	w.pair(t)
	f := scrape(t, server(t, &Collector{Monitor: w.monitor, Conns: 1}))
	require.Greater(t, len(f), 50)
	for name := range f {
		count := regexp.MustCompile(`^rdma_(listener_|connection_)?`).ReplaceAllString(name, "")
		require.True(t, named[name] || named[count], name)
	}
}

// A field that is new in rconn.Stats must get a metric.
func TestEveryCountIsThere(t *testing.T) {
	var fill func(v reflect.Value, next uint64) uint64
	fill = func(v reflect.Value, next uint64) uint64 {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Struct {
				next = fill(f, next)
			} else {
				next++
				f.SetUint(next)
			}
		}
		return next
	}
	var s rconn.Stats
	n := fill(reflect.ValueOf(&s).Elem(), 0)
	got := map[uint64]bool{}
	for _, c := range counts {
		got[c.of(&s)] = true
	}
	require.Len(t, counts, int(n))
	require.Len(t, got, int(n))
}

func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, new(rconn.Monitor), "dev")
	for range 5 {
		w.pair(t)
	}
	for _, conns := range []int{0, 3, 100} {
		f := scrape(t, server(t, &Collector{Monitor: w.monitor, Conns: conns}))
		require.Len(t, f["rdma_connection_credits"].GetMetric(), min(conns, 10))
		require.Len(t, f["rdma_connections"].Metric, 2)
		require.Len(t, f["rdma_listener_connections"].Metric, 1)
	}
}

func TestHosts(t *testing.T) {
	w := newWorld(t, &rconn.Monitor{Hosts: 1}, "dev")
	d, a := w.pair(t)
	send(t, d, a, 10)
	// The end that was made first has the place for its peer.
	named, other := serverAddr, "accepted"
	if w.monitor.Snapshot().Conns[0].Listener.IsValid() {
		named, other = clientAddr, "dialed"
	}
	f := scrape(t, server(t, &Collector{Monitor: w.monitor}))
	require.Equal(t, 1.0, f.of(t, "rdma_connections", "remote_host", named))
	require.Equal(t, 1.0, f.of(t, "rdma_connections", "remote_host", rconn.OtherHosts, "side", other))
}

// Two listeners and two connections with the same addresses, as one at RDMA and one at TCP can have, are one series each.
func TestSameAddresses(t *testing.T) {
	m := new(rconn.Monitor)
	one, other := newWorld(t, m, "bad\xffname"), newWorld(t, m, "bad\xfename")
	require.Equal(t, one.ln.Addr().String(), other.ln.Addr().String())
	d, a := one.pair(t)
	send(t, d, a, 100)
	d, a = other.pair(t)
	send(t, d, a, 11)
	f := scrape(t, server(t, &Collector{Monitor: m, Conns: 10}))
	require.Equal(t, 111.0, f.of(t, "rdma_listener_received_bytes_total"))
	require.Equal(t, 2.0, f.of(t, "rdma_listener_accepted_total"))
	require.Equal(t, 111.0, f.of(t, "rdma_sent_bytes_total", "side", "dialed", "device", "bad\ufffdname"))
	require.Equal(t, 111.0, f.of(t, "rdma_connection_sent_bytes_total", "side", "dialed"))
}

func TestNilMonitor(t *testing.T) {
	require.Empty(t, scrape(t, server(t, new(Collector))))
}

// Scrapes go on while connections come, go and work: none fails, and sums only grow.
func TestScrapesDuringTraffic(t *testing.T) {
	w := newWorld(t, new(rconn.Monitor), "dev")
	url := server(t, &Collector{Monitor: w.monitor, Conns: 5})
	var serving, clients, scraping sync.WaitGroup
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
	for range 3 {
		scraping.Go(func() {
			for before := 0.0; ; {
				now := 0.0
				f, err := fetch(url)
				if err != nil {
					t.Error(err)
					return
				}
				for _, m := range f["rdma_sent_bytes_total"].GetMetric() {
					now += m.GetCounter().GetValue()
				}
				if now < before {
					t.Errorf("%v bytes after %v", now, before)
				}
				before = now
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	const conns, rounds, size = 40, 20, 10_000
	for range 4 {
		clients.Go(func() {
			for range conns / 4 {
				c, err := w.dialer.Dial("rdma", w.ln.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				buf := make([]byte, size)
				for range rounds {
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
	scraping.Wait()
	w.ln.Close()
	serving.Wait()
	f := scrape(t, url)
	require.Equal(t, float64(conns*rounds*size), f.of(t, "rdma_sent_bytes_total", "side", "dialed"))
	require.Equal(t, 0.0, f.of(t, "rdma_connections", "side", "accepted"))
	require.NotContains(t, f, "rdma_connections_by_state")
}
