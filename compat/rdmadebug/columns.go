package rdmadebug

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/rconn/rdma/rconn"
)

// column shows one thing of each row. Its title is also the name to sort by.
type column[T any] struct {
	title   string
	number  bool // set to the right
	cell    func(*T) cell
	compare func(a, b *T) int
}

// cell is what a table has in one place, and what more there is to say about it.
type cell struct{ Text, More string }

func words[T any](title string, f func(*T) string) column[T] {
	return column[T]{
		title: title, cell: func(r *T) cell { return cell{Text: f(r)} },
		compare: func(a, b *T) int { return cmp.Compare(f(a), f(b)) },
	}
}

func number[T any, N int | uint32 | uint64 | time.Duration](title string, f func(*T) N, show func(N) cell) column[T] {
	return column[T]{
		title: title, number: true, cell: func(r *T) cell { return show(f(r)) },
		compare: func(a, b *T) int { return cmp.Compare(f(b), f(a)) },
	}
}

func count[T any, N int | uint32 | uint64](title string, f func(*T) N) column[T] {
	return number(title, f, func(n N) cell { return cell{Text: fmt.Sprint(n)} })
}

func size[T any](title string, f func(*T) uint64) column[T] { return number(title, f, bytesCell) }

// bytesCell shows a size in a unit that suits it, and in bytes.
func bytesCell(n uint64) cell {
	const few = 10_000
	if n < few {
		return cell{Text: fmt.Sprint(n)}
	}
	v, unit := float64(n), -1
	for v >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	return cell{fmt.Sprintf("%.1f %ciB", v, "KMGTP"[unit]), fmt.Sprintf("%d bytes", n)}
}

func age[T any](title string, now time.Time, f func(*T) time.Time) column[T] {
	return number(title, func(r *T) time.Duration { return max(0, now.Sub(f(r))) }, func(d time.Duration) cell {
		switch {
		case d < time.Second:
			return cell{Text: fmt.Sprintf("%d ms", d.Milliseconds())}
		case d < time.Minute:
			return cell{Text: fmt.Sprintf("%.1f s", d.Seconds())}
		}
		return cell{Text: d.Round(time.Second).String()}
	})
}

func listenerColumns(now time.Time) []column[rconn.ListenerStatus] {
	type row = rconn.ListenerStatus
	return []column[row]{
		words("address", func(r *row) string { return r.Addr.String() }),
		words("network", func(r *row) string { return r.Network }),
		words("device", servedBy),
		age("age", now, func(r *row) time.Time { return r.Since }),
		count("accepted", func(r *row) uint64 { return r.Accepted }),
		count("failed", func(r *row) uint64 { return r.Failed }),
		count("handshakes", func(r *row) int { return r.Handshakes }),
		count("waiting", func(r *row) int { return r.Waiting }),
		count("open", func(r *row) int { return r.Open }),
		size("sent", func(r *row) uint64 { return r.BytesSent }),
		size("received", func(r *row) uint64 { return r.BytesReceived }),
		count("stalls", func(r *row) uint64 { return r.WriteStalls }),
		count("probes", func(r *row) uint64 { return r.Probes }),
	}
}

// servedBy names the devices of a listener.
func servedBy(l *rconn.ListenerStatus) string {
	if l.Lost {
		return "removed"
	}
	for _, name := range l.Devices {
		if name == "" {
			return "any"
		}
	}
	return strings.Join(l.Devices, ", ")
}

func connColumns(now time.Time) []column[conn] {
	type row = conn
	return []column[row]{
		{
			title: "state", cell: func(r *row) cell { return cell{r.State, r.Err} },
			compare: func(a, b *row) int { return cmp.Compare(a.ConnStatus.State, b.ConnStatus.State) },
		},
		words("device", func(r *row) string { return r.Device }),
		count("QP", func(r *row) uint32 { return r.QPNum }),
		words("local", func(r *row) string { return r.Local.String() }),
		words("remote", func(r *row) string { return r.Remote.String() }),
		words("side", func(r *row) string { return side(r.Listener.IsValid()) }),
		age("age", now, func(r *row) time.Time { return r.Since }),
		age("heard", now, func(r *row) time.Time { return r.Heard }),
		size("sent", func(r *row) uint64 { return r.BytesSent }),
		size("received", func(r *row) uint64 { return r.BytesReceived }),
		size("unread", func(r *row) uint64 { return uint64(r.Unread) }),
		size("unsent", func(r *row) uint64 { return uint64(r.Unsent) }),
		{
			title: "credits", number: true,
			cell:    func(r *row) cell { return cell{Text: fmt.Sprintf("%d of %d", r.CreditsLeft, r.PeerCredits)} },
			compare: func(a, b *row) int { return cmp.Compare(a.CreditsLeft, b.CreditsLeft) }, // those short of them first
		},
		count("stalls", func(r *row) uint64 { return r.WriteStalls }),
		count("waits", func(r *row) uint64 { return r.Waits }),
		count("probes", func(r *row) uint64 { return r.Probes }),
	}
}

func side(accepted bool) string {
	if accepted {
		return "accepted"
	}
	return "dialed"
}

var totalColumns = []column[total]{
	words("device", func(r *total) string { return r.Device }),
	words("transport", func(r *total) string { return r.Transport }),
	words("side", func(r *total) string { return side(r.Accepted) }),
	words("host", func(r *total) string { return cmp.Or(r.Host, "all") }),
	count("made", func(r *total) uint64 { return r.Opened }),
	count("open", func(r *total) int { return r.Open }),
	size("sent", func(r *total) uint64 { return r.BytesSent }),
	size("received", func(r *total) uint64 { return r.BytesReceived }),
	count("stalls", func(r *total) uint64 { return r.WriteStalls }),
	count("waits", func(r *total) uint64 { return r.Waits }),
	count("probes", func(r *total) uint64 { return r.Probes }),
}
