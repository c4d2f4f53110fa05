package rdmadebug

import (
	"slices"
	"time"

	"github.com/rconn/rdma/rconn"
)

// report is what all formats show.
type report struct {
	Time      time.Time
	Devices   *section[port] `json:",omitempty"`
	Listeners *section[rconn.ListenerStatus]
	Conns     *section[conn]
	Totals    *section[total]

	sort string // the column that was asked for
}

// conn is a connection whose words JSON can say.
type conn struct {
	rconn.ConnStatus
	State     string
	Transport string
	Err       string `json:",omitempty"`
}

type total struct {
	rconn.Total
	Transport string
}

func newReport(m *rconn.Monitor, sort string, rows int) *report {
	s := m.Snapshot()
	conns := make([]conn, len(s.Conns))
	for i, c := range s.Conns {
		conns[i] = conn{ConnStatus: c, State: c.State.String(), Transport: c.Transport.String()}
		if c.Err != nil {
			conns[i].Err = c.Err.Error()
		}
	}
	totals := make([]total, len(s.Totals))
	for i, t := range s.Totals {
		totals[i] = total{t, t.Transport.String()}
	}
	now := time.Now()
	return &report{
		Time:      now,
		Listeners: newSection(s.Listeners, listenerColumns(now), sort, rows),
		Conns:     newSection(conns, connColumns(now), sort, rows),
		Totals:    newSection(totals, totalColumns, sort, rows),
		sort:      sort,
	}
}

// section is a part of the report.
type section[T any] struct {
	Count   int // of what the title names; a device may have several rows
	LeftOut int // rows
	Rows    []T

	columns []column[T]
}

// newSection sorts before it leaves something out, so that the first ones of all are shown.
func newSection[T any](rows []T, columns []column[T], sort string, most int) *section[T] {
	for _, c := range columns {
		if c.title == sort {
			slices.SortStableFunc(rows, func(a, b T) int { return c.compare(&a, &b) })
		}
	}
	s := &section[T]{Count: len(rows), Rows: rows[:min(most, len(rows))], columns: columns}
	if s.Rows == nil {
		s.Rows = []T{} // not null in JSON
	}
	s.LeftOut = s.Count - len(s.Rows)
	return s
}
