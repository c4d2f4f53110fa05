//go:build browser

// Package browser has a test with a real browser, which tools/browser.sh runs: headless Chromium loads a site of 100 assets, and
// between it and the server there is RDMA.
package browser

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const patience = 2 * time.Minute

func TestSite(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "github.com/rconn/rdma/examples/http", "github.com/rconn/rdma/cmd/rdmaproxy")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	site := makeSite(t, dir)

	serve := func(t *testing.T, host, policy string) string {
		return start(t, regexp.MustCompile(`^serving .* on (\S+)`), filepath.Join(bin, "http"), "-listen", net.JoinHostPort(host, "0"),
			"-dir", dir, "-policy", policy)[0]
	}
	proxy := func(t *testing.T, rule string, flags ...string) (addr, metrics string) {
		a := start(t, regexp.MustCompile(`msg=(?:listening|metrics) .*address="?([^" ]+)`), filepath.Join(bin, "rdmaproxy"),
			append([]string{"-forward", rule, "-metrics", "127.0.0.1:0"}, flags...)...)
		return a[0], a[1]
	}
	rdma := cmp.Or(os.Getenv("ADDR"), "127.0.0.1")

	for name, flags := range map[string][]string{"default rings": nil, "rings of 4 KiB": {"-ring", "4KiB"}} {
		t.Run("a proxy and a server on RDMA, "+name, func(t *testing.T) {
			server := serve(t, rdma, "require")
			addr, metrics := proxy(t, "tcp://127.0.0.1:0=rdma://"+server, flags...)
			look(t, addr, site)
			carried(t, metrics, site)
		})
		t.Run("two proxies, "+name, func(t *testing.T) {
			server := serve(t, "127.0.0.1", "tcp-only")
			far, farMetrics := proxy(t, "rdma://"+net.JoinHostPort(rdma, "0")+"=tcp://"+server, flags...)
			near, nearMetrics := proxy(t, "tcp://127.0.0.1:0=rdma://"+far, flags...)
			look(t, near, site)
			carried(t, nearMetrics, site)
			carried(t, farMetrics, site)
		})
	}
	t.Run("plain TCP", func(t *testing.T) { // that the port with RDMA is one for browsers too
		look(t, serve(t, "127.0.0.1", "prefer"), site)
	})
}

// start runs a program until the end of the test, and returns the addresses that its first lines name, two with -metrics.
func start(t *testing.T, line *regexp.Regexp, name string, args ...string) (found []string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	ended, read := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- cmd.Wait()
		w.Close()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			<-read // what is logged belongs to this test
			require.NoError(t, err, name)
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-read
			t.Errorf("%s does not end", name)
		}
	})
	want := 1 + strings.Count(strings.Join(args, " "), "-metrics")
	lines := make(chan string, want)
	go func() {
		defer close(read)
		s := bufio.NewScanner(r)
		for s.Scan() {
			t.Log(filepath.Base(name)+":", s.Text())
			if m := line.FindStringSubmatch(s.Text()); m != nil {
				lines <- m[1]
			}
		}
	}()
	for range want {
		select {
		case l := <-lines:
			found = append(found, l)
		case <-time.After(patience):
			t.Fatalf("%s does not start", name)
		}
	}
	return found
}

// look has the browser load the page, and wants all assets in the document and on the screen.
func look(t *testing.T, addr string, site []*asset) {
	t.Helper()
	shot, err := filepath.Abs(filepath.Join("..", "..", "build", "browser-"+regexp.MustCompile(`\W+`).ReplaceAllString(filepath.Base(t.Name()), "_")+".png"))
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(shot), 0o755))
	_ = os.Remove(shot)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := []string{"--headless", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
		"--force-color-profile=srgb", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-extensions", "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,%d", pageWidth, pageHeight), "--screenshot=" + shot, "--dump-dom"}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox") // which does not work for root
	}
	cmd := exec.CommandContext(ctx, cmp.Or(os.Getenv("CHROMIUM"), "chromium"), append(args, "http://"+addr+"/")...)
	cmd.WaitDelay = 10 * time.Second // its children have the same output
	var errs bytes.Buffer
	cmd.Stderr = &errs
	dom, err := cmd.Output()
	require.NoError(t, err, &errs)
	inDocument(t, string(dom), site)
	onScreen(t, shot, site)
}

func inDocument(t *testing.T, dom string, site []*asset) {
	t.Helper()
	total := 0
	for _, a := range site {
		total += len(a.data)
		cell := regexp.MustCompile(`<div id="` + a.ID + `"[^>]*>`).FindString(dom)
		for _, want := range []string{`data-used="true"`, fmt.Sprintf(`data-size="%d"`, len(a.data)), fmt.Sprintf(`data-crc="%s"`, a.crc())} {
			require.Contains(t, cell, want, a.Name)
		}
		require.Contains(t, dom, fmt.Sprintf("<span>%d %s</span>", len(a.data), a.crc()))
	}
	require.Contains(t, dom, fmt.Sprintf("%d assets loaded, %d bytes", assets, total))
}

// onScreen wants the colour of each asset in its block, and below each something written.
func onScreen(t *testing.T, shot string, site []*asset) {
	t.Helper()
	file, err := os.Open(shot)
	require.NoError(t, err)
	defer file.Close()
	img, err := png.Decode(file)
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, pageWidth, pageHeight), img.Bounds())
	for _, a := range site {
		for _, at := range []image.Point{{3, 3}, {cellWidth / 2, blockHeight / 4}, {cellWidth - 4, blockHeight/2 - 4}} {
			got := color.RGBAModel.Convert(img.At(a.x+at.X, a.y+at.Y)).(color.RGBA)
			require.Equal(t, a.color, got, "%s at %v of its cell", a.Name, at)
		}
		dark := 0
		for y := a.y + blockHeight; y < a.y+cellHeight; y++ {
			for x := a.x; x < a.x+cellWidth; x++ {
				if r, _, _, _ := img.At(x, y).RGBA(); r < 0x8000 {
					dark++
				}
			}
		}
		require.Greater(t, dark, 50, "text below %s", a.Name)
	}
	t.Log("seen in", shot)
}

var metric = regexp.MustCompile(`(?m)^(rdmaproxy_\w+_total)\{([^}]*)\} (\d+)$`)

// carried wants all bytes of the site to have gone through a proxy, and no error.
func carried(t *testing.T, metrics string, site []*asset) {
	t.Helper()
	resp, err := http.Get("http://" + metrics + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	sum := make(map[string]int)
	for _, m := range metric.FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.Atoi(m[3])
		require.NoError(t, err)
		name := m[1]
		if strings.Contains(m[2], `to="client"`) {
			name += " to the client"
		}
		sum[name] += n
	}
	total := 0
	for _, a := range site {
		total += len(a.data)
	}
	require.Positive(t, sum["rdmaproxy_connections_total"], "%s", text)
	require.GreaterOrEqual(t, sum["rdmaproxy_bytes_total to the client"], total)
	require.Zero(t, sum["rdmaproxy_errors_total"], "%s", text)
	t.Logf("%d connections, %d bytes to the browser", sum["rdmaproxy_connections_total"], sum["rdmaproxy_bytes_total to the client"])
}
