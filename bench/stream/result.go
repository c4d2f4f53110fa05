package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// The numbers of a sample.
const (
	nValue    = "value"    // in the work's unit
	nMedian   = "median"   // µs
	nP99      = "p99"      // µs
	nCPUMsg   = "cpu/msg"  // µs of both processes
	nCPUByte  = "cpu/byte" // ns of both processes
	nBusy     = "busy"     // processors that both processes kept busy
	nParks    = "parks"    // of both processes, per message
	nPosted   = "posted"   // RDMA messages with data, per message
	nAllocs   = "allocs"   // of both processes, per message
	nThreads  = "threads"  // of the process with more
	nFDs      = "fds"      // per connection and side
	nPinned   = "pinned"   // KiB per connection and side
	nResident = "resident" // KiB per connection and side
	nKernel   = "kernel"   // KiB per connection and side, of the whole kernel
	nOpened   = "opened"   // connections opened in a second
	nUneven   = "uneven"   // largest difference of a connection from an equal share, as a part of it
)

// sample is what one round of a measurement gave.
type sample struct {
	Numbers map[string]float64
	Took    time.Duration
	Times   []float64 `json:",omitempty"` // quantiles of the times of single operations, µs
}

// measured are the samples of a contender at a work, one for each round.
type measured struct {
	Contender string
	Rounds    []sample
}

// outcome is a work with what was measured.
type outcome struct {
	Work    string // its name
	Group   string // what belongs in one table
	Unit    string
	Smaller bool // is better
	Size    int
	Conns   int
	Head    string // when and where
	Results []measured
}

// results is all that a page or a document is made of.
type results struct {
	Head       string
	Settings   []string // of rconn
	Processors int      // of the machine
	Notes      []string
	Outcomes   []outcome
}

// sample is the one of a task that took so long.
func (t task) sample(took, cpu time.Duration) sample {
	messages := float64(t.messages())
	bytes := messages * float64(t.Size)
	s := sample{Took: took, Numbers: map[string]float64{}}
	switch {
	case t.Kind == transfer && t.Count == 1:
		s.Numbers[nValue] = took.Seconds() * 1e6 / messages
	case t.Kind == transfer || t.Kind == duplex || t.Kind == file || t.Kind == share:
		s.Numbers[nValue] = bytes / took.Seconds() / (1 << 20)
	default:
		s.Numbers[nValue] = messages / took.Seconds()
	}
	if cpu > 0 {
		s.Numbers[nCPUMsg] = cpu.Seconds() * 1e6 / messages
		s.Numbers[nBusy] = cpu.Seconds() / took.Seconds()
		if t.Kind != connects && t.Kind != requests {
			s.Numbers[nCPUByte] = cpu.Seconds() * 1e9 / bytes
		}
	}
	return s
}

// setTimes adds the quantiles of the times of single operations, if they are known.
func (s *sample) setTimes(times []float64) {
	s.Times = times
	if len(times) > 0 {
		s.Numbers[nMedian], s.Numbers[nP99] = times[len(times)/2], times[len(times)*99/100]
	}
}

// numbers collects one number of all rounds, if it is known.
func (m *measured) numbers(name string) []float64 {
	var all []float64
	for _, s := range m.Rounds {
		if x, ok := s.Numbers[name]; ok {
			all = append(all, x)
		}
	}
	return all
}

// median of one number, and whether it is known.
func (m *measured) median(name string) (float64, bool) {
	all := m.numbers(name)
	if len(all) == 0 {
		return 0, false
	}
	return median(all), true
}

// find returns what a contender did at a work, or nil.
func (r *results) find(work, contender string) *measured {
	for i := range r.Outcomes {
		if r.Outcomes[i].Work == work {
			return r.Outcomes[i].find(contender)
		}
	}
	return nil
}

func (o *outcome) find(contender string) *measured {
	i := slices.IndexFunc(o.Results, func(m measured) bool { return m.Contender == contender })
	if i < 0 {
		return nil
	}
	return &o.Results[i]
}

// keep writes the results to a file, and takes from it the work that was not measured now.
func (r *results) keep(name string) error {
	var old results
	text, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(text, &old)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	r.merge(old)
	if r.Settings == nil {
		r.Settings = old.Settings
	}
	if text, err = json.Marshal(r); err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

func (r *results) merge(old results) {
	byName := map[string]outcome{}
	for _, o := range slices.Concat(old.Outcomes, r.Outcomes) {
		byName[o.Work] = o
	}
	r.Outcomes = slices.SortedFunc(maps.Values(byName), func(a, b outcome) int {
		return cmp.Or(cmp.Compare(slices.Index(groups, a.Group), slices.Index(groups, b.Group)), cmp.Compare(a.Size, b.Size),
			cmp.Compare(a.Conns, b.Conns), cmp.Compare(a.Work, b.Work))
	})
}
