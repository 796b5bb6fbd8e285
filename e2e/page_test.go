package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// page is a page open in headless Chromium, with what went wrong in it and
// every request that it made.
type page struct {
	t        *testing.T
	ctx      context.Context
	mutex    sync.Mutex
	errors   []string
	requests []string
}

// openPage opens a page in a browser of its own, which ends with the test.
func openPage(t *testing.T, address string) *page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(tool(t, "chromium")),
		chromedp.WindowSize(1280, 1000),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		cancel()
		cancelAllocator()
	})
	p := &page{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatalf("starting the browser: %v", err)
	}
	run(p, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
		if _, err := cdp.Call(ctx, target, log.Enable, cdp.Empty{}); err != nil {
			return chromedp.Void{}, err
		}
		_, err := cdp.Call(ctx, target, network.Enable, network.EnableParams{})
		return chromedp.Void{}, err
	})
	run(p, chromedp.Navigate(address))
	return p
}

// note keeps what a reader must never meet.
func (p *page) note(event any) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, fmt.Sprintf("exception: %s %s", e.ExceptionDetails.Text, consoleText([]*runtime.RemoteObject{e.ExceptionDetails.Exception})))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			p.errors = append(p.errors, fmt.Sprintf("console %s: %s", e.Type, consoleText(e.Args)))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			p.errors = append(p.errors, fmt.Sprintf("log: %s (%s)", e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

func consoleText(args []*runtime.RemoteObject) string {
	var words []string
	for _, a := range args {
		if a != nil {
			words = append(words, string(a.Value)+a.Description)
		}
	}
	return strings.Join(words, " ")
}

// run does one thing in the page and returns its value.
func run[T any](p *page, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, startLimit)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatalf("browser: %v", err)
	}
	return result
}

// text is what a reader sees.
func (p *page) text() string {
	p.t.Helper()
	return run(p, chromedp.Evaluate[string]("document.body.innerText"))
}

// shows waits until the page names the zone and keeps a picture of it
// (go test -artifacts).
func (p *page) shows(zone string) {
	p.t.Helper()
	eventually(p.t, startLimit, "the page shows "+zone, func() error {
		text := strings.ToLower(p.text())
		if !strings.Contains(text, zone) {
			return fmt.Errorf("it reads %.600q", text)
		}
		return nil
	})
	p.picture(zone)
}

// picture keeps a picture of the whole page among the test's artifacts.
func (p *page) picture(name string) {
	p.t.Helper()
	picture := run(p, chromedp.FullScreenshot(100))
	if err := os.WriteFile(filepath.Join(p.t.ArtifactDir(), name+".png"), picture, 0o644); err != nil {
		p.t.Errorf("keeping the picture: %v", err)
	}
}

// isClean tells that nothing went wrong and nothing was asked of anybody but
// the page's own server.
func (p *page) isClean(address string) {
	p.t.Helper()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, e := range p.errors {
		p.t.Errorf("the page reported: %s", e)
	}
	own, err := url.Parse(address)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range p.requests {
		u, err := url.Parse(r)
		if err != nil || (u.Host != own.Host && u.Scheme != "data" && u.Scheme != "blob") {
			p.t.Errorf("the page asked for %s", r)
		}
	}
	if len(p.requests) < 2 {
		p.t.Errorf("the page made the requests %q, want at least itself and its data", p.requests)
	}
}

// The page must stay up and say so when its server or the engine goes.
func TestPageSurvivesEngineAndServer(t *testing.T) {
	t.Parallel()
	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	p := openPage(t, s.url+"/")
	p.shows("stable")
	p.isClean(s.url)

	engine.kill()
	s.waitForState(startLimit, "down")
	p.shows("down")
	p.isClean(s.url)

	s.kill()
	p.shows("no answer")
}

// A replica with a curve: the picture has the zones and what was measured, the
// live point moves, and the page says what binds. Without a curve it says how
// to come by one.
func TestPageDrawsTheCurve(t *testing.T) {
	t.Parallel()
	_, url := startDemo(t, shortDay...)
	p := openPage(t, url+"/")
	count := func(selector string) int {
		t.Helper()
		return run(p, chromedp.Evaluate[int](fmt.Sprintf("document.querySelectorAll(%q).length", "#curve-section "+selector)))
	}
	var first string
	eventually(t, startLimit, "the live point is drawn", func() error {
		if first = p.livePoint(); first == "" {
			return fmt.Errorf("the section reads %.300q", run(p, chromedp.Evaluate[string](`document.querySelector("#curve-section").innerText`)))
		}
		return nil
	})
	for selector, least := range map[string]int{
		"figure > svg": 1, ".band.stable": 1, ".band.unstable": 1, ".upright.knee": 1, ".upright.watermark": 1,
		"figure > svg .measured.dot": 4, "table.mix tbody th": 1, "dl.facts dt": 6,
	} {
		if n := count(selector); n < least {
			t.Errorf("%s is there %d times, want at least %d", selector, n, least)
		}
	}
	if label := run(p, chromedp.Evaluate[string](`document.querySelector("#curve-section figure > svg").getAttribute("aria-label")`)); !strings.Contains(label, "Now at ") {
		t.Errorf("who does not see the picture is told %q", label)
	}
	eventually(t, startLimit, "the live point moves", func() error {
		if now := p.livePoint(); now == "" || now == first {
			return fmt.Errorf("it is at %q, was at %q", now, first)
		}
		return nil
	})
	p.picture("curve")
	p.isClean(url)

	engine := simulate(t, constantLoad...)
	s := serve(t, engine.url)
	s.waitFor(startLimit, "headroom", knowsHeadroom)
	plain := openPage(t, s.url+"/")
	eventually(t, startLimit, "the page says how to measure a curve", func() error {
		if text := plain.text(); !strings.Contains(text, "--curve.file") {
			return fmt.Errorf("it reads %.600q", text)
		}
		return nil
	})
	plain.isClean(s.url)
}

// livePoint is where the live operating point is drawn; empty when it is not.
func (p *page) livePoint() string {
	p.t.Helper()
	return run(p, chromedp.Evaluate[string](`(() => {
		const point = document.querySelector("#curve-section figure > svg .live");
		return point ? point.getAttribute("cx") + " " + point.getAttribute("cy") : "";
	})()`))
}
