package rdmadebug

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
)

// port is a port of a device, or in Err why a provider has no device or a device does not tell of a port.
type port struct {
	Provider  string
	Device    string
	Transport string `json:",omitempty"`
	Port      int    `json:",omitempty"`
	State     string `json:",omitempty"`
	Link      string `json:",omitempty"`
	Netdev    string `json:",omitempty"`
	MTU       int    `json:",omitempty"` // bytes
	GIDs      []gid  `json:",omitempty"`
	MoreGIDs  bool   `json:",omitempty"` // not all were looked at

	// Retries has the counters of the device that have to do with retries, null where it has none.
	Retries map[string]uint64
	Err     string `json:",omitempty"`
}

type gid struct {
	Index int
	GID   string
	Type  string
}

// maxGIDs bounds what is looked at of a GID table, and maxShownGIDs what is shown: with many addresses tables are long.
const (
	maxGIDs      = 256
	maxShownGIDs = 16
)

func portsOf(providers []cm.Provider, counters fs.FS) []port {
	var ports []port
	for _, p := range providers {
		devices, err := p.Devices()
		if len(devices) == 0 && err != nil {
			ports = append(ports, port{Provider: p.Name(), Err: err.Error()})
		}
		for _, d := range devices {
			attr := d.Attr()
			for num := 1; num <= attr.Ports; num++ {
				one := port{Provider: p.Name(), Device: d.Name(), Transport: attr.Transport.String(), Port: num}
				one.look(d, counters)
				ports = append(ports, one)
			}
		}
	}
	return ports
}

// devicesIn counts devices: one has several rows where it has several ports, and a provider that has none has one too.
func devicesIn(ports []port) int {
	found := map[[2]string]bool{}
	for _, p := range ports {
		if p.Device != "" {
			found[[2]string{p.Provider, p.Device}] = true
		}
	}
	return len(found)
}

// look fills in what there is to see of a port at this moment.
func (p *port) look(d verbs.Device, counters fs.FS) {
	attr, err := d.Port(p.Port)
	if err != nil {
		p.Err = err.Error()
		return
	}
	p.State, p.Link, p.Netdev, p.MTU = attr.State.String(), attr.Link.String(), attr.Netdev, attr.MTU
	p.Retries = retries(counters, d.Name(), p.Port)
	for i := range attr.GIDs {
		if p.MoreGIDs = i == maxGIDs || len(p.GIDs) == maxShownGIDs; p.MoreGIDs {
			break
		}
		g, err := d.GID(p.Port, i)
		if err != nil || g.IsZero() {
			continue
		}
		one := gid{Index: i, GID: g.String()}
		if t, err := d.GIDType(p.Port, i); err == nil {
			one.Type = t.String()
		}
		p.GIDs = append(p.GIDs, one)
	}
}

// ofRetries are parts of the names of counters that say that packets were lost or late, or receivers not ready. Each driver has names of
// its own.
var ofRetries = []string{"retr", "rnr", "timeout", "seq", "dup"}

// retries reads those counters of a port; nil where the device has none.
func retries(counters fs.FS, device string, num int) map[string]uint64 {
	dir := path.Join(device, "ports", strconv.Itoa(num), "hw_counters")
	entries, err := fs.ReadDir(counters, dir)
	if err != nil {
		return nil
	}
	found := map[string]uint64{}
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if !slices.ContainsFunc(ofRetries, func(part string) bool { return strings.Contains(name, part) }) {
			continue
		}
		text, err := fs.ReadFile(counters, path.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			found[e.Name()] = n
		}
	}
	return found
}

// retriesCell shows the counters that are not zero.
func (p *port) retriesCell() cell {
	switch {
	case p.Device == "":
		return cell{}
	case p.Retries == nil:
		return cell{Text: "not counted"}
	}
	var some []string
	for _, name := range slices.Sorted(maps.Keys(p.Retries)) {
		if n := p.Retries[name]; n > 0 {
			some = append(some, fmt.Sprintf("%s %d", name, n))
		}
	}
	if len(some) == 0 {
		return cell{Text: "0"}
	}
	return cell{Text: strings.Join(some, ", ")}
}

func (p *port) gidsCell() string {
	var all []string
	for _, g := range p.GIDs {
		text := fmt.Sprintf("%d=%s", g.Index, g.GID)
		if g.Type != verbs.GIDTypeIB.String() {
			text += " " + g.Type
		}
		all = append(all, text)
	}
	if p.MoreGIDs {
		all = append(all, "and perhaps more")
	}
	return strings.Join(all, ", ")
}

// unknown is said of the state when there is none.
func unknown(p *port) string {
	if p.Device == "" {
		return "missing"
	}
	return "not known"
}

// orNothing is for numbers that are not known when they are 0.
func orNothing(n int) cell {
	if n == 0 {
		return cell{}
	}
	return cell{Text: strconv.Itoa(n)}
}

var portColumns = []column[port]{
	words("device", func(p *port) string { return cmp.Or(p.Device, "none") }),
	words("provider", func(p *port) string { return p.Provider }),
	words("transport", func(p *port) string { return p.Transport }),
	number("port", func(p *port) int { return p.Port }, orNothing),
	{
		title: "state", cell: func(p *port) cell { return cell{cmp.Or(p.State, unknown(p)), p.Err} },
		compare: func(a, b *port) int { return strings.Compare(a.State, b.State) },
	},
	words("link", func(p *port) string { return p.Link }),
	words("netdev", func(p *port) string { return p.Netdev }),
	number("MTU", func(p *port) int { return p.MTU }, orNothing),
	{
		title: "retries", cell: (*port).retriesCell,
		compare: func(a, b *port) int { return strings.Compare(a.retriesCell().Text, b.retriesCell().Text) },
	},
	words("GIDs", (*port).gidsCell), // last: it is long
}
