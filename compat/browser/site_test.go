//go:build browser

package browser

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"html/template"
	"image"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page is a grid of cells, one for each asset: a block of the asset's colour, which is seen if the asset has been loaded as
// what it is, and a line with its size and checksum.
const (
	assets, columns       = 100, 10
	header                = 30 // pixels above the grid
	cellWidth, cellHeight = 100, 60
	blockHeight           = 40
	pageWidth             = columns * cellWidth
	pageHeight            = header + assets/columns*cellHeight
	smallest, largest     = 200, 1 << 20 // bytes of an asset, about
)

type asset struct {
	ID, Kind, Name string
	data           []byte
	color          color.RGBA
	x, y           int // of the cell's corner
}

func (a *asset) crc() string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(a.data)) }

// makeSite writes a site of generated images, scripts and styles to dir.
func makeSite(t *testing.T, dir string) []*asset {
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []*asset
	for i := range assets {
		a := &asset{ID: fmt.Sprintf("a%02d", i), x: i % columns * cellWidth, y: header + i/columns*cellHeight}
		a.color = color.RGBA{uint8(i % columns * 25), uint8(i / columns * 25), uint8(255 - i), 255}
		css := fmt.Sprintf("rgb(%d, %d, %d)", a.color.R, a.color.G, a.color.B)
		size := int(smallest * math.Pow(largest/smallest, float64(i)/(assets-1)))
		switch i % 3 {
		case 0:
			a.Kind, a.Name, a.data = "image", a.ID+".png", picture(t, a.color, 20+i, size, rnd)
		case 1:
			a.Kind, a.Name, a.data = "script", a.ID+".js", padded(fmt.Sprintf("paint(%q, %q);", a.ID, css), size, rnd)
		case 2:
			a.Kind, a.Name, a.data = "style", a.ID+".css", padded(fmt.Sprintf("#%s .block { background: %s; }", a.ID, css), size, rnd)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, a.Name), a.data, 0o644))
		all = append(all, a)
	}
	var html bytes.Buffer
	require.NoError(t, page.Execute(&html, map[string]any{"Assets": all, "Header": header, "Columns": columns,
		"Width": cellWidth, "Height": cellHeight, "Block": blockHeight}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.html"), html.Bytes(), 0o644))
	return all
}

// padded is code with a comment that makes it size bytes.
func padded(code string, size int, rnd *rand.Rand) []byte {
	b := []byte(code + "/*")
	for len(b) < size-2 {
		b = append(b, "0123456789abcdef"[rnd.IntN(16)])
	}
	return append(b, "*/"...)
}

// picture is a PNG of about size bytes: its upper half of one colour, the lower of all.
func picture(t *testing.T, c color.RGBA, width, size int, rnd *rand.Rand) []byte {
	height := max(2, 2*size/(3*width))
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	for y := range height {
		for x := range width {
			if y >= (height+1)/2 {
				c = color.RGBA{uint8(rnd.Uint32()), uint8(rnd.Uint32()), uint8(rnd.Uint32()), 255}
			}
			img.SetRGBA(x, y, c)
		}
	}
	var b bytes.Buffer
	require.NoError(t, png.Encode(&b, img))
	return b.Bytes()
}

// page tells of each asset whether it was loaded as what it is, and with which bytes; the test knows what is right.
var page = template.Must(template.New("page").Parse(strings.TrimSpace(`
<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>One hundred assets</title>
<style>
	body { margin: 0; font: 10px monospace; }
	h1 { margin: 0; height: {{.Header}}px; line-height: {{.Header}}px; font-size: 14px; }
	main { display: grid; grid-template-columns: repeat({{.Columns}}, {{.Width}}px); grid-auto-rows: {{.Height}}px; }
	.block { height: {{.Block}}px; overflow: hidden; }
	img { width: {{.Width}}px; height: {{.Block}}px; display: block; }
</style>
{{range .Assets}}{{if eq .Kind "style"}}<link rel="stylesheet" href="{{.Name}}">
{{end}}{{end}}
<h1 id="sum">loading</h1>
<main>
{{range .Assets}}<div id="{{.ID}}" data-kind="{{.Kind}}" data-name="{{.Name}}"><div class="block">
{{- if eq .Kind "image"}}<img src="{{.Name}}" alt="">{{end}}</div><span></span></div>
{{end}}</main>
<script>
	const painted = {};
	function paint(id, color) {
		document.querySelector("#" + id + " .block").style.background = color;
		painted[id] = true;
	}
	const table = Array.from({length: 256}, (_, n) => {
		for (let k = 0; k < 8; k++) n = n & 1 ? n >>> 1 ^ 0xedb88320 : n >>> 1;
		return n;
	});
	// bytes asks for a file and waits, so that all is done when the page counts as loaded.
	function bytes(name) {
		const r = new XMLHttpRequest();
		r.open("GET", name, false);
		r.overrideMimeType("text/plain; charset=x-user-defined");
		r.send();
		return r.status == 200 ? r.responseText : "";
	}
	function crc(text) {
		let c = -1;
		for (let i = 0; i < text.length; i++) c = c >>> 8 ^ table[(c ^ text.charCodeAt(i)) & 255];
		return (~c >>> 0).toString(16).padStart(8, "0");
	}
	function used(cell) {
		switch (cell.dataset.kind) {
		case "image":
			const img = cell.querySelector("img");
			return img.complete && img.naturalWidth > 0;
		case "script":
			return cell.id in painted;
		case "style":
			return document.querySelector("link[href='" + cell.dataset.name + "']").sheet != null;
		}
	}
	addEventListener("load", () => {
		let loaded = 0, total = 0;
		for (const cell of document.querySelectorAll("main > div")) {
			const text = bytes(cell.dataset.name);
			cell.dataset.used = used(cell);
			cell.dataset.size = text.length;
			cell.dataset.crc = crc(text);
			cell.querySelector("span").textContent = text.length + " " + cell.dataset.crc;
			loaded += used(cell);
			total += text.length;
		}
		document.querySelector("#sum").textContent = loaded + " assets loaded, " + total + " bytes";
	});
</script>
{{range .Assets}}{{if eq .Kind "script"}}<script src="{{.Name}}"></script>
{{end}}{{end}}</html>
`)))
