package rdmadebug

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"github.com/rconn/rdma"
	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/rconn"
)

// Handler serves the page. The query "format" chooses "html", "text" or "json"; without it the Accept header does, so that a browser gets
// HTML and curl gets text. The query "sort" names a column: numbers come biggest first, words in order, and tables without that column oldest
// first. It answers GET and HEAD, and looks at no path.
type Handler struct {
	// Monitor knows the listeners and connections. Nil: devices alone are shown.
	Monitor *rconn.Monitor

	// Providers have the devices. Nil: rdma.Providers().
	Providers []cm.Provider

	// Rows is how many rows of each table are shown. 0: 500. The page says how many there are.
	Rows int

	counters fs.FS // tests have their own
}

const defaultRows = 500

// sysfs has a directory for each device of the system, on Linux.
const sysfs = "/sys/class/infiniband"

func (h *Handler) rows() int {
	if h.Rows <= 0 {
		return defaultRows
	}
	return h.Rows
}

// ServeHTTP answers with the page.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD are answered", http.StatusMethodNotAllowed)
		return
	}
	query := r.URL.Query()
	f, ok := formats[formatOf(query.Get("format"), r.Header.Get("Accept"))]
	if !ok {
		http.Error(w, "format is html, text or json", http.StatusBadRequest)
		return
	}
	rep := newReport(h.Monitor, query.Get("sort"), h.rows())
	ports := h.devices()
	rep.Devices = newSection(ports, portColumns, rep.sort, h.rows())
	rep.Devices.Count = devicesIn(ports)
	var b bytes.Buffer
	if err := f.write(&b, rep); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("Vary", "Accept")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(b.Bytes())
}

type format struct {
	contentType string
	write       func(*bytes.Buffer, *report) error
}

var formats = map[string]format{
	"html": {"text/html; charset=utf-8", writeHTML},
	"text": {"text/plain; charset=utf-8", writeText},
	"json": {"application/json", writeJSON},
}

func formatOf(asked, accept string) string {
	switch {
	case asked != "":
		return asked
	case strings.Contains(accept, "text/html"):
		return "html"
	case strings.Contains(accept, "application/json"):
		return "json"
	}
	return "text"
}

func writeJSON(b *bytes.Buffer, r *report) error {
	enc := json.NewEncoder(b)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Vars returns a function for expvar.Func: what is in the JSON of a Handler, without devices, at most 500 rows of each kind.
func Vars(m *rconn.Monitor) func() any {
	return func() any { return newReport(m, "", defaultRows) }
}

func (h *Handler) devices() []port {
	providers, counters := h.Providers, h.counters
	if providers == nil {
		providers = rdma.Providers()
	}
	if counters == nil {
		counters = os.DirFS(sysfs)
	}
	return portsOf(providers, counters)
}
