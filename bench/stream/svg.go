package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// chart is a plot of lines. Its colours are classes: the page's style has one set for light and one for dark.
type chart struct {
	title, x, y string
	logX, logY  bool
	ticks       []float64            // of x; nil: chosen
	tick        func(float64) string // writes one of x; nil: figure
	lines       []line
}

// line is what one contender did.
type line struct {
	name   string
	points []point
	bare   bool // no marks: there are many points
	loose  bool // no line: there are few
}

type point struct{ x, y, low, high float64 } // low and high bound the rounds

// The drawing's measures.
const (
	chartWidth, chartHeight           = 560.0, 340.0
	marginLeft, marginRight           = 58.0, 14.0
	marginTop, marginBottom           = 14.0, 46.0
	plotWidth, plotHeight             = chartWidth - marginLeft - marginRight, chartHeight - marginTop - marginBottom
	legendLine, legendColumns         = 17.0, 3
	markRadius, barHeight, barsMargin = 3.2, 22.0, 150.0
)

// axis maps numbers to the drawing.
type axis struct {
	from, to float64
	log      bool
	start    float64
	length   float64
}

func (a axis) at(v float64) float64 {
	if a.log {
		return a.start + a.length*(math.Log(v)-math.Log(a.from))/(math.Log(a.to)-math.Log(a.from))
	}
	return a.start + a.length*(v-a.from)/(a.to-a.from)
}

// axisFor spans values. A linear one begins at 0.
func axisFor(values []float64, log bool, start, length float64) axis {
	from, to := slices.Min(values), slices.Max(values)
	switch {
	case log && from == to:
		from, to = from/2, to*2
	case log:
		from, to = from/1.1, to*1.1
	default:
		from, to = 0, to*1.08
		if to == 0 {
			to = 1
		}
	}
	return axis{from, to, log, start, length}
}

// ticks are round numbers along the axis.
func (a axis) ticks() []float64 {
	var all []float64
	if a.log {
		decades := math.Log10(a.to / a.from)
		steps := []float64{1, 2, 5}
		if decades > 4 {
			steps = []float64{1}
		}
		for e := math.Floor(math.Log10(a.from)); e <= math.Log10(a.to); e++ {
			for _, s := range steps {
				if v := s * math.Pow(10, e); v >= a.from && v <= a.to {
					all = append(all, v)
				}
			}
		}
		return all
	}
	step := roundStep((a.to - a.from) / 6)
	for v := math.Ceil(a.from/step) * step; v <= a.to; v += step {
		all = append(all, v)
	}
	return all
}

// roundStep is the smallest of 1, 2, 5, 10, 20 ... and their tenths that is not below a number.
func roundStep(least float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(least)))
	for _, s := range []float64{1, 2, 5} {
		if s*unit >= least*0.999 {
			return s * unit
		}
	}
	return 10 * unit
}

// svg draws the chart; empty where there is nothing to draw.
func (c chart) svg() string {
	c.lines = slices.DeleteFunc(slices.Clone(c.lines), func(l line) bool { return len(l.points) == 0 })
	var xs, ys []float64
	for _, l := range c.lines {
		for _, p := range l.points {
			xs, ys = append(xs, p.x), append(ys, p.y, p.low, p.high)
		}
	}
	if c.logY {
		ys = slices.DeleteFunc(ys, func(y float64) bool { return y <= 0 })
	}
	if len(xs) == 0 || len(ys) == 0 {
		return ""
	}
	ax := axisFor(xs, c.logX, marginLeft, plotWidth)
	ay := axisFor(ys, c.logY, marginTop+plotHeight, -plotHeight)

	rows := (len(c.lines) + legendColumns - 1) / legendColumns
	var w strings.Builder
	fmt.Fprintf(&w, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, chartWidth, chartHeight+float64(rows)*legendLine, html.EscapeString(c.title))
	c.grid(&w, ax, ay)
	for _, l := range c.lines {
		l.draw(&w, ax, ay, c)
	}
	for i, l := range c.lines {
		x := marginLeft + plotWidth/legendColumns*float64(i%legendColumns)
		y := chartHeight + legendLine*float64(i/legendColumns)
		s := styleOf(l.name)
		fmt.Fprintf(&w, `<line class="line %s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, s.class(), x, y, x+24, y)
		if !l.bare {
			s.mark(&w, x+12, y, "")
		}
		fmt.Fprintf(&w, `<text class="legend" x="%.1f" y="%.1f">%s</text>`, x+30, y+4, html.EscapeString(l.name))
	}
	w.WriteString("</svg>")
	return w.String()
}

func (c chart) grid(w *strings.Builder, ax, ay axis) {
	for _, v := range ay.ticks() {
		y := ay.at(v)
		fmt.Fprintf(w, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, marginLeft, y, marginLeft+plotWidth, y)
		fmt.Fprintf(w, `<text class="tick" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, marginLeft-6, y+4, short(v))
	}
	ticks, write := c.ticks, c.tick
	if ticks == nil {
		ticks = ax.ticks()
	}
	if write == nil {
		write = short
	}
	for _, v := range ticks {
		x := ax.at(v)
		fmt.Fprintf(w, `<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, x, marginTop, x, marginTop+plotHeight)
		fmt.Fprintf(w, `<text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, x, marginTop+plotHeight+16, html.EscapeString(write(v)))
	}
	fmt.Fprintf(w, `<line class="axis" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, marginLeft, marginTop+plotHeight, marginLeft+plotWidth, marginTop+plotHeight)
	fmt.Fprintf(w, `<text class="label" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, marginLeft+plotWidth/2, chartHeight-14, html.EscapeString(c.x))
	fmt.Fprintf(w, `<text class="label" text-anchor="middle" transform="translate(13 %.1f) rotate(-90)">%s</text>`, marginTop+plotHeight/2, html.EscapeString(c.y))
}

func (l line) draw(w *strings.Builder, ax, ay axis, c chart) {
	s := styleOf(l.name)
	var path []string
	for _, p := range l.points {
		if c.logY && p.y <= 0 {
			continue
		}
		path = append(path, fmt.Sprintf("%.1f,%.1f", ax.at(p.x), ay.at(p.y)))
	}
	if !l.loose {
		fmt.Fprintf(w, `<polyline class="line %s" points="%s"/>`, s.class(), strings.Join(path, " "))
	}
	if l.bare {
		return
	}
	for _, p := range l.points {
		if c.logY && p.y <= 0 {
			continue
		}
		if p.low < p.high && (!c.logY || p.low > 0) {
			fmt.Fprintf(w, `<line class="range %s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, s.colour, ax.at(p.x), ay.at(p.low), ax.at(p.x), ay.at(p.high))
		}
		x := figure(p.x)
		if c.tick != nil {
			x = c.tick(p.x)
		}
		s.mark(w, ax.at(p.x), ay.at(p.y), fmt.Sprintf("%s, %s: %s", l.name, x, figure(p.y)))
	}
}

// bars is a plot of one number for each contender.
func bars(title, unit string, items []line) string {
	items = slices.DeleteFunc(slices.Clone(items), func(l line) bool { return len(l.points) == 0 })
	if len(items) == 0 {
		return ""
	}
	var values []float64
	for _, l := range items {
		values = append(values, l.points[0].y, l.points[0].high)
	}
	a := axisFor(values, false, barsMargin, chartWidth-barsMargin-60)
	height := barHeight*float64(len(items)) + 40
	var w strings.Builder
	fmt.Fprintf(&w, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, chartWidth, height, html.EscapeString(title))
	for _, v := range a.ticks() {
		fmt.Fprintf(&w, `<line class="grid" x1="%.1f" y1="0" x2="%.1f" y2="%.1f"/>`, a.at(v), a.at(v), height-36)
		fmt.Fprintf(&w, `<text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, a.at(v), height-22, short(v))
	}
	for i, l := range items {
		p, s, y := l.points[0], styleOf(l.name), barHeight*float64(i)+4
		fmt.Fprintf(&w, `<text class="legend" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, barsMargin-8, y+12, html.EscapeString(l.name))
		fmt.Fprintf(&w, `<rect class="bar %s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`,
			s.colour, barsMargin, y, max(1, a.at(p.y)-barsMargin), barHeight-7, html.EscapeString(fmt.Sprintf("%s: %s %s", l.name, figure(p.y), unit)))
		if p.low < p.high {
			fmt.Fprintf(&w, `<line class="error" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, a.at(p.low), y+7.5, a.at(p.high), y+7.5)
		}
		fmt.Fprintf(&w, `<text class="value" x="%.1f" y="%.1f">%s</text>`, a.at(max(p.y, p.high))+6, y+12, figure(p.y))
	}
	fmt.Fprintf(&w, `<text class="label" text-anchor="middle" x="%.1f" y="%.1f">%s</text></svg>`, barsMargin+a.length/2, height-6, html.EscapeString(unit))
	return w.String()
}

// short writes a number at an axis.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

// style is how a contender is drawn: a colour for its family, dashes and marks for its members, so that paper without colours
// tells them apart too.
type style struct {
	colour string
	dash   string
	shape  int // circle, square, triangle
}

func (s style) class() string { return strings.TrimSpace(s.colour + " " + s.dash) }

var styles = map[string]style{
	cRconn:           {"blue", "", 0},
	cRconnSpin:       {"blue", "dashed", 1},
	cRconnPark:       {"blue", "dotted", 2},
	cSoftware:        {"violet", "", 1},
	cTCP:             {"yellow", "", 2},
	cUnix:            {"magenta", "", 0},
	cRstream:         {"orange", "", 1},
	cBlocking:        {"orange", "dashed", 2},
	cRsocket:         {"orange", "", 0},
	cTimed:           {"orange", "dotted", 0},
	cCmtime:          {"orange", "dashed", 0},
	cWriteBW:         {"green", "", 2},
	cWriteLat:        {"green", "", 2},
	cSendLat:         {"green", "dashed", 0},
	cSendEvent:       {"green", "dotted", 1},
	cWriteBW + " -b": {"green", "", 2},
}

func styleOf(contender string) style {
	if s, ok := styles[contender]; ok {
		return s
	}
	return style{"blue", "dashed", 0}
}

func (s style) mark(w *strings.Builder, x, y float64, title string) {
	if title != "" {
		title = "<title>" + html.EscapeString(title) + "</title>"
	}
	const r = markRadius
	switch s.shape {
	case 0:
		fmt.Fprintf(w, `<circle class="mark %s" cx="%.1f" cy="%.1f" r="%.1f">%s</circle>`, s.colour, x, y, r, title)
	case 1:
		fmt.Fprintf(w, `<rect class="mark %s" x="%.1f" y="%.1f" width="%.1f" height="%.1f">%s</rect>`, s.colour, x-r, y-r, 2*r, 2*r, title)
	default:
		fmt.Fprintf(w, `<polygon class="mark %s" points="%.1f,%.1f %.1f,%.1f %.1f,%.1f">%s</polygon>`, s.colour, x, y-r*1.2, x-r*1.2, y+r, x+r*1.2, y+r, title)
	}
}
