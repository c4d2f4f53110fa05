package main

import (
	_ "embed"
	"html/template"
	"os"
	"slices"
	"strings"
)

// The page is one file: no script, no font, nothing from elsewhere.

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"words": table.words}).Parse(pageText))

// plot is a drawing with its words.
type plot struct {
	Title, Text string
	SVG         template.HTML
}

// section is a table with its words.
type section struct {
	Title, About string
	Table        table
}

// Head and Rows are for the page.
func (t table) Head() []string   { return t[0] }
func (t table) Rows() [][]string { return t[1:] }

// writePage makes the page.
func (r *results) writePage(name string) error {
	page := struct {
		Title, Head string
		Heads       []string // of what was measured at another time
		Settings    []string
		Goals       []verdictRow
		Plots       []plot
		Sections    []section
		Notes       []string
	}{Title: "Streams, measured", Head: r.Head, Settings: r.Settings, Notes: append(slices.Clone(r.Notes), r.doubts()...)}
	for _, o := range r.Outcomes {
		if o.Head != r.Head && !slices.Contains(page.Heads, o.Head) {
			page.Heads = append(page.Heads, o.Head)
		}
	}
	for i, row := range r.goalTable() {
		if i > 0 {
			page.Goals = append(page.Goals, verdictRow{row, row[4] == "PASS"})
		}
	}
	for _, p := range r.plots() {
		if p.SVG != "" {
			page.Plots = append(page.Plots, p)
		}
	}
	for _, g := range groups {
		if t := r.table(g); t != nil {
			page.Sections = append(page.Sections, section{strings.ToUpper(g[:1]) + g[1:], about[g], t})
		}
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := pageTemplate.Execute(f, page); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// verdictRow is a row of the goals' table.
type verdictRow struct {
	Cells []string
	Pass  bool
}

// plots are all drawings; those without data are empty.
func (r *results) plots() []plot {
	drawn := func(c chart) template.HTML { return template.HTML(c.svg()) }
	const rounds = " Thin lines show how far the rounds differ."
	return []plot{
		{"64 B: how long one way takes", "The part of all messages that took at most so long, half of a round trip; the programs of perftest tell two points of it, rstream none.", drawn(chart{
			x: "µs, logarithmic", y: "part of messages", logX: true, lines: r.distributions("round trip 64B"),
		})},
		{"One way by size", "Mean time of one way." + rounds, drawn(r.bySize(gRoundTrip, nValue, chart{y: "µs, logarithmic", logY: true}))},
		{"Throughput by size", "Writes of one size, one way." + rounds, drawn(r.bySize(gStream, nValue, chart{y: "MiB/s"}))},
		{"CPU by size", "Of both processes, for one byte." + rounds, drawn(r.bySize(gStream, nCPUByte, chart{y: "ns per byte, logarithmic", logY: true}))},
		{"Many connections", "64 bytes there and back on each." + rounds, drawn(r.scaling(nValue, chart{y: "messages/s"}))},
		{"Many connections: the slowest", "99 of 100 round trips took at most so long." + rounds, drawn(r.scaling(nP99, chart{y: "µs, logarithmic", logY: true}))},
		{"Connections per second", about[gConnects], template.HTML(r.bars("connects"))},
		{"net/http", about[gHTTP], template.HTML(r.bars("http"))},
		{"File to connection", about[gFile], template.HTML(r.bars("file"))},
		{"Both directions at once, 1 MiB", about[gBoth], template.HTML(r.bars("both ways 1MiB"))},
	}
}

// pointOf is a median with the bounds of the rounds.
func (m *measured) pointOf(x float64, name string) (point, bool) {
	all := m.numbers(name)
	if len(all) == 0 {
		return point{}, false
	}
	return point{x, median(all), slices.Min(all), slices.Max(all)}, true
}

// lines collects one number of a group by contender; x tells where an outcome stands.
func (r *results) lines(group, name string, x func(o *outcome) float64) (lines []line, xs []float64) {
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Group != group {
			continue
		}
		xs = append(xs, x(o))
		for k := range o.Results {
			p, ok := o.Results[k].pointOf(x(o), name)
			if !ok {
				continue
			}
			at := slices.IndexFunc(lines, func(l line) bool { return l.name == o.Results[k].Contender })
			if at < 0 {
				at = len(lines)
				lines = append(lines, line{name: o.Results[k].Contender})
			}
			lines[at].points = append(lines[at].points, p)
		}
	}
	return lines, xs
}

func (r *results) bySize(group, name string, c chart) chart {
	c.lines, c.ticks = r.lines(group, name, func(o *outcome) float64 { return float64(o.Size) })
	c.x, c.logX, c.tick = "bytes of a message", true, func(x float64) string { return bytesText(int(x)) }
	return c
}

func (r *results) scaling(name string, c chart) chart {
	c.lines, c.ticks = r.lines(gFan, name, func(o *outcome) float64 { return float64(o.Conns) })
	c.x, c.logX = "connections", true
	return c
}

// distributions are those of a work's contenders, each quantile the median of the rounds'.
func (r *results) distributions(work string) (lines []line) {
	for i := range r.Outcomes {
		if r.Outcomes[i].Work != work {
			continue
		}
		for k := range r.Outcomes[i].Results {
			lines = append(lines, r.Outcomes[i].Results[k].distribution())
		}
	}
	return lines
}

func (m *measured) distribution() line {
	l := line{name: m.Contender, bare: true}
	if len(m.Rounds) > 0 && len(m.Rounds[0].Times) > 0 {
		n := len(m.Rounds[0].Times)
		for i := range n {
			var at []float64
			for _, s := range m.Rounds {
				at = append(at, s.Times[i])
			}
			y := (float64(i) + 0.5) / float64(n)
			l.points = append(l.points, point{median(at), y, y, y})
		}
		return l
	}
	l.bare = false
	for _, q := range []struct {
		y    float64
		name string
	}{{0.5, nMedian}, {0.99, nP99}} {
		if x, ok := m.median(q.name); ok {
			l.points = append(l.points, point{x, q.y, q.y, q.y})
		}
	}
	return l
}

// bars shows the contenders of one work.
func (r *results) bars(work string) string {
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		if o.Work != work {
			continue
		}
		var items []line
		for k := range o.Results {
			if p, ok := o.Results[k].pointOf(0, nValue); ok {
				items = append(items, line{name: o.Results[k].Contender, points: []point{p}})
			}
		}
		return bars(work, o.Unit, items)
	}
	return ""
}
