package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// drawn is what a browser made of a picture.
type drawn struct {
	Label string
	// Marks are the points, lines and bars that have an extent on the screen.
	Marks int
	// Outside are marks beyond the picture, Overlaps pairs of texts upon one another.
	Outside, Overlaps []string
	Texts             int
}

// pictures looks at every picture of the page in the browser.
const pictures = `[...document.querySelectorAll("figure svg[role=img]")].map(svg => {
	const frame = svg.getBoundingClientRect(), visible = b => b.width > 0 || b.height > 0;
	const marks = [...svg.querySelectorAll(".mark, .line, .bar")].map(e => e.getBoundingClientRect()).filter(visible);
	const beyond = b => b.left < frame.left - 3 || b.right > frame.right + 3 || b.top < frame.top - 3 || b.bottom > frame.bottom + 3;
	const texts = [...svg.querySelectorAll("text")].map(e => ({text: e.textContent, b: e.getBoundingClientRect()})).filter(t => visible(t.b));
	const overlaps = [];
	for (let i = 0; i < texts.length; i++) for (let k = 0; k < i; k++) {
		const a = texts[i].b, c = texts[k].b;
		const width = Math.min(a.right, c.right) - Math.max(a.left, c.left), height = Math.min(a.bottom, c.bottom) - Math.max(a.top, c.top);
		if (width > 2 && height > 5) overlaps.push(texts[k].text + " / " + texts[i].text);
	}
	return {
		Label: svg.getAttribute("aria-label") || "", Marks: marks.length, Overlaps: overlaps, Texts: texts.length,
		Outside: marks.filter(beyond).map(b => [b.left, b.top, b.right, b.bottom].map(Math.round).join(" "))
			.concat(texts.filter(t => beyond(t.b)).map(t => t.text)),
	};
})`

// The report needs nothing but itself: opened from a disk, without a network,
// in a light and in a dark browser, on a screen, a phone and paper, every
// picture is drawn.
func TestReportPage(t *testing.T) {
	t.Parallel()
	show, status := runToEnd(t, nil, "curve", "show", "--output=html", "../capacity/curve/testdata/example.json")
	if status != 0 {
		t.Fatalf("curve show ended with status %d", status)
	}
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(show.stdout.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	address := (&url.URL{Scheme: "file", Path: path}).String()
	backgrounds := map[string]string{}
	p := openPage(t, "about:blank")
	run(p, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		var blocked []*network.BlockPattern
		for _, pattern := range []string{"http://*:*", "https://*:*", "ws://*:*", "wss://*:*"} {
			blocked = append(blocked, &network.BlockPattern{URLPattern: pattern, Block: true})
		}
		_, err := cdp.Call(ctx, target, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: blocked})
		return chromedp.Void{}, err
	})
	for _, view := range []struct {
		name, scheme, media string
		width               int64
	}{
		{"light", "light", "", 1280},
		{"dark", "dark", "", 1280},
		{"phone", "light", "", 390},
		{"phone-dark", "dark", "", 390},
		{"print", "light", "print", 800},
	} {
		t.Run(view.name, func(t *testing.T) {
			run(p, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
				_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Media: view.media, Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: view.scheme}},
				})
				return chromedp.Void{}, err
			})
			run(p, chromedp.EmulateViewport(view.width, 1000))
			run(p, chromedp.Navigate(address))

			all := run(p, chromedp.Evaluate[[]drawn](pictures))
			if len(all) < 5*9 {
				t.Errorf("%d pictures, want nine at least for each of five studies", len(all))
			}
			for _, d := range all {
				if d.Label == "" {
					t.Errorf("picture %+v does not say what it shows", d)
				}
				if d.Marks < 3 || d.Texts < 5 {
					t.Errorf("%q has %d marks and %d texts drawn, want 3 and 5 at least", d.Label, d.Marks, d.Texts)
				}
				if len(d.Outside) > 0 {
					t.Errorf("%q: beyond the picture: %q", d.Label, d.Outside)
				}
				if len(d.Overlaps) > 0 {
					t.Errorf("%q: texts upon one another: %q", d.Label, d.Overlaps)
				}
			}
			if wide := run(p, chromedp.Evaluate[float64]("document.documentElement.scrollWidth - document.documentElement.clientWidth")); wide > 0 {
				t.Errorf("the page is %g pixels wider than the screen", wide)
			}
			backgrounds[view.name] = run(p, chromedp.Evaluate[string]("getComputedStyle(document.body).backgroundColor"))
			picture := run(p, chromedp.FullScreenshot(100))
			if err := os.WriteFile(filepath.Join(t.ArtifactDir(), fmt.Sprintf("report-%s.png", view.name)), picture, 0o644); err != nil {
				t.Errorf("keeping the picture: %v", err)
			}
			run(p, chromedp.Evaluate[bool]("document.querySelectorAll('details').forEach(d => d.open = true) === undefined"))
			if text := p.text(); strings.Contains(text, "NaN") || !strings.Contains(text, "requests/s") {
				t.Errorf("the page reads %.300q", text)
			}
		})
	}
	if backgrounds["light"] == backgrounds["dark"] {
		t.Errorf("light and dark have the same background %s", backgrounds["light"])
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, e := range p.errors {
		t.Errorf("the page reported: %s", e)
	}
	for _, r := range p.requests {
		if r != address && !strings.HasPrefix(r, "data:") && r != "about:blank" {
			t.Errorf("the page asked for %s", r)
		}
	}
}
