package rdmadebug

import (
	"bytes"
	"fmt"
	"html/template"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"
)

// table is a section as both pages show it.
type table struct {
	Title   string
	Count   int
	LeftOut int
	Head    []head
	Rows    [][]cell
}

type head struct {
	Title          string
	Number, Sorted bool
}

// tables are in the order in which one looks for trouble.
func (r *report) tables() []table {
	return []table{
		newTable("Devices", r.Devices, r.sort), newTable("Listeners", r.Listeners, r.sort),
		newTable("Connections", r.Conns, r.sort), newTable("Totals", r.Totals, r.sort),
	}
}

func newTable[T any](title string, s *section[T], sort string) table {
	t := table{Title: title, Count: s.Count, LeftOut: s.LeftOut}
	for _, c := range s.columns {
		t.Head = append(t.Head, head{c.title, c.number, c.title == sort})
	}
	for i := range s.Rows {
		row := make([]cell, len(s.columns))
		for j, c := range s.columns {
			row[j] = c.cell(&s.Rows[i])
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func writeText(b *bytes.Buffer, r *report) error {
	fmt.Fprintf(b, "RDMA at %s\n", r.Time.Format(time.RFC3339))
	for _, t := range r.tables() {
		fmt.Fprintf(b, "\n%s: %d\n", t.Title, t.Count)
		if len(t.Rows) == 0 {
			continue
		}
		w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
		line := make([]string, len(t.Head))
		for i, h := range t.Head {
			line[i] = strings.ToUpper(h.Title)
		}
		fmt.Fprintln(w, strings.Join(line, "\t"))
		for _, row := range t.Rows {
			var more strings.Builder // why a connection is broken, behind the line
			for i, c := range row {
				line[i] = printable(c.Text)
				if c.More != "" && !t.Head[i].Number {
					more.WriteString("  " + printable(c.More))
				}
			}
			fmt.Fprintln(w, strings.Join(line, "\t")+more.String())
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if t.LeftOut > 0 {
			fmt.Fprintf(b, "%d more are left out.\n", t.LeftOut)
		}
	}
	return nil
}

// printable keeps what comes from elsewhere from moving a terminal's cursor, or a table's columns.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func writeHTML(b *bytes.Buffer, r *report) error {
	return page().Execute(b, map[string]any{"Time": r.Time.Format(time.RFC3339), "Tables": r.tables()})
}

// page is parsed when it is first wanted.
var page = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

const pageText = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>RDMA</title>
<style>
:root { color-scheme: light dark; --line: light-dark(#d0d4da, #3c4148); --soft: light-dark(#5b636d, #a0a8b2); --stripe: light-dark(#f4f6f8, #22262b) }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem; color: light-dark(#1b1f24, #e3e6ea); background: light-dark(#fff, #16191d) }
h1 { font-size: 1.4rem; margin: 0 }
h2 { font-size: 1.1rem; margin: 1.6rem 0 .4rem }
p, h2 span { color: var(--soft); font-weight: normal; margin: .3rem 0 }
a { color: light-dark(#0b57c2, #86b7ff) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .5rem; text-align: left; vertical-align: top; white-space: nowrap; border-bottom: 1px solid var(--line) }
th a { text-decoration: none }
th[aria-sort] a { text-decoration: underline }
tbody tr:nth-child(even) { background: var(--stripe) }
.n { text-align: right }
.long, small { white-space: normal; min-width: 21rem; max-width: 26rem }
small { display: block; min-width: 13rem; max-width: 16rem; color: var(--soft) }
.bad { color: light-dark(#b3261e, #ff9a90) }
</style>
</head>
<body>
<h1>RDMA</h1>
<p>{{.Time}} · as <a href="?format=text">text</a>, <a href="?format=json">JSON</a> · a column's title sorts by it</p>
{{range .Tables}}<section>
<h2>{{.Title}} <span>{{.Count}}</span></h2>
{{if .Rows}}<div class="wide"><table>
<thead><tr>{{range .Head}}<th scope="col"{{if .Number}} class="n"{{end}}{{if .Sorted}} aria-sort="{{if .Number}}descending{{else}}ascending{{end}}"{{end}}>` +
	`<a href="?format=html&amp;sort={{.Title}}">{{.Title}}</a></th>{{end}}</tr></thead>
<tbody>
{{$head := .Head}}{{range .Rows}}<tr>{{range $i, $c := .}}{{$number := (index $head $i).Number}}` +
	`<td{{if $number}} class="n"{{else if eq $c.Text "broken"}} class="bad"{{else if gt (len $c.Text) 40}} class="long"{{end}}{{if and $c.More $number}} title="{{$c.More}}"{{end}}>` +
	`{{$c.Text}}{{if and $c.More (not $number)}} <small>{{$c.More}}</small>{{end}}</td>{{end}}</tr>
{{end}}</tbody>
</table></div>
{{else}}<p>none</p>
{{end}}{{if .LeftOut}}<p>{{.LeftOut}} more are left out.</p>
{{end}}</section>
{{end}}</body>
</html>
`
